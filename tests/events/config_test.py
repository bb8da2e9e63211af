"""What is wrong with a configuration of maru-eventd, with its line. config_test.py --eventd E --example FILE"""
import argparse
import pathlib
import subprocess
import tempfile

STREAM = '[[zeromq]]\nname = "a"\nendpoint = "tcp://*:5557"\n'
NATS = '[[nats]]\nname = "n"\nurl = "nats://127.0.0.1:4222"\n'
TRACES = '[traces]\nendpoint = "http://127.0.0.1:4318/v1/traces"\n'
GOOD = [STREAM, NATS, STREAM + NATS,
        STREAM + 'replay = "tcp://*:5558"\ntopic = "kv@{pod}@{model}"\npods = ["x"]\nmodel = "m"\n[zeromq.relay]\n'
                 'endpoint = "tcp://engine:5557"\n',
        NATS + 'format = "dynamo"\nnamespace = "a"\ncomponent = "b"\nendpoint = "c"\nworker_id = 1\n[nats.jetstream]\n',
        '[[pool]]\nname = "p"\nsocket = "/run/x"\n' + STREAM + 'pools = ["p"]\nmedium = "CXL"\n',
        TRACES, STREAM + TRACES,
        TRACES + 'socket = "/run/x"\nheaders = ["A: b"]\nbatch_spans = 1\nretry_s = 0\nclients = 9\nuser_clients = 9\n']
BAD = [
    ("", "1", "zeromq: found nothing, expected something to publish: [[zeromq]], [[nats]] or [traces]"),
    ("[traces]\n", "1", "traces.endpoint: found nothing, expected the collector's address"),
    (TRACES.replace("http", "grpc"), "2", 'traces.endpoint: found "grpc://127.0.0.1:4318/v1/traces", expected http://HOST:PORT'),
    (TRACES + 'headers = ["x"]\n', "3", "traces.headers"),
    (TRACES + 'socket = "x"\n', "3", 'traces.socket: found "x", expected an absolute path'),
    (TRACES + "clients = 4\nuser_clients = 5\n", "4", "traces.user_clients: found 5, expected at most clients, which is 4"),
    (TRACES + "batch_spans = 0\n", "3", "traces.batch_spans: found 0, expected a whole number from 1"),
    ("x = ", "1", "not TOML"),
    ("[[zeromq]]\n", "1", "zeromq.name: found nothing, expected a name for the stream"),
    ("[[zeromq]]\n", "1", "zeromq.endpoint: found nothing, expected where subscribers find the events"),
    (STREAM.replace('"a"', '"a b"'), "2", 'zeromq.name: found "a b", expected 1 to 63 letters'),
    (STREAM.replace("tcp", "http"), "3", 'zeromq.endpoint: found "http://*:5557", expected an endpoint to listen at'),
    (STREAM + 'mode = "connect"\n', "3", "zeromq.endpoint: found \"tcp://*:5557\", expected an endpoint to connect to"),
    (STREAM + "hwm = 0\n", "4", "zeromq.hwm: found 0, expected a whole number from 1"),
    (STREAM + 'pools = ["x"]\n', "4", 'found none with the label "x"'),
    (STREAM + "tpic = 1\n", "4", "zeromq.tpic: found an unknown key"),
    (STREAM + STREAM, "4", 'zeromq.name: found "a", which the stream in line 1 has, too'),
    (STREAM + STREAM, "4", 'zeromq.endpoint: found "tcp://*:5557", which the stream in line 1 has, too'),
    (STREAM + 'topic = "kv@{pod}@m"\n', "1", "zeromq.pods: found nothing, expected the names that stand for {pod}"),
    (STREAM + 'batch_bytes = "1GiB"\n', "4", 'zeromq.batch_bytes: found "1GiB", expected a size from'),
    (STREAM + '[zeromq.relay]\n', "4", "zeromq.relay.endpoint: found nothing, expected where the engine publishes"),
    ('[[pool]]\nsocket = "x"\n' + STREAM, "2", 'pool.socket: found "x", expected an absolute path'),
    ("[[pool]]\n[[pool]]\n" + STREAM, "2", 'pool.label: found "default", which is that of the pool in line 1, too'),
    (NATS.replace("nats:", "http:"), "3", 'nats.url: found "http://127.0.0.1:4222", expected nats://HOST:PORT'),
    (NATS + 'subject = "a.>"\n', "4", 'nats.subject: found "a.>", expected words between points'),
    (NATS + 'format = "dynamo"\n', "1", "nats.worker_id: found nothing"),
    (NATS + 'format = "dynamo"\n', "1", "nats.namespace: found nothing"),
    (NATS + 'namespace = "x"\n', "4", 'nats.namespace: found "x", expected nothing'),
    ('[eventd]\nstate_dir = "x"\n' + STREAM, "2", 'eventd.state_dir: found "x", expected an absolute path'),
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--eventd", required=True)
    parser.add_argument("--example", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="maru-test-") as folder:
        path = pathlib.Path(folder) / "eventd.toml"

        def check(text):
            path.write_text(text)
            return subprocess.run([arguments.eventd, "--config", path, "--check-config"], capture_output=True, text=True)
        for text in [*GOOD, pathlib.Path(arguments.example).read_text()]:
            ended = check(text)
            assert (ended.returncode, ended.stdout) == (0, "OK\n"), f"{text}\n{ended.stderr}"
        for text, line, expected in BAD:
            ended = check(text)
            assert ended.returncode == 1, text
            said = [one for one in ended.stderr.splitlines() if expected in one]
            assert said and f":{line}: " in said[0], f"{text}\nexpected {line}: {expected}\nfound {ended.stderr}"


if __name__ == "__main__":
    main()
