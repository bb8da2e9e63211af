"""The examples of docs/examples/python run as they stand there."""
import pathlib
import re
import subprocess
import sys

from maru import layout

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "examples" / "python"


def test_ten_lines(marud):
    done = subprocess.run([sys.executable, EXAMPLES / "ten_lines.py"], env=marud.environment, capture_output=True, text=True,
                          timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'hello world' [True, False]\n", "")
    assert len((EXAMPLES / "ten_lines.py").read_text().splitlines()) <= 10


def test_the_tour_draws_the_pool(marud_program):
    done = subprocess.run([sys.executable, EXAMPLES / "tour.py", "--marud", marud_program], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    pictures = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith("|")]
    assert pictures[0] == "|" + "#" * 8 + "." * 16 + "|"
    assert pictures[1] == pictures[2] == "|" + "P" * 8 + "." * 16 + "|"
    assert "." in pictures[3] and pictures[4].endswith("#|")
    assert pictures[-1] == "|" + "." * 24 + "|"
    assert "block 5 begins with b'\\x05\\x05\\x05\\x05'" in done.stdout


def test_the_tour_says_when_there_is_no_marud():
    done = subprocess.run([sys.executable, EXAMPLES / "tour.py", "--marud", "/bin/false"], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 1 and "is it the program marud?" in done.stderr
    done = subprocess.run([sys.executable, EXAMPLES / "tour.py", "--marud", "/nonexistent/marud"], capture_output=True,
                          text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "/nonexistent/marud: No such file or directory; name the program marud with "
                                                 "--marud\n")


def test_numpy_is_needed_by_those_alone_who_bring_arrays(marud):
    code = ("import sys; sys.modules['numpy'] = None; import maru, maru.aio\n"
            "with maru.Client(timeout_ms=60_000) as client, maru.MaruHandler() as handler:\n"
            "    client.store_copy('without numpy', b'x')\n"
            "    print(client.exists_batch(['without numpy', b'absent']), handler.batch_exists(['without numpy']),\n"
            "          bytes(handler.retrieve('without numpy').view), client.delete_batch(['without numpy']))\n")
    done = subprocess.run([sys.executable, "-c", code], env=marud.environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[True, False] [True] b'x' [True]\n"), done.stderr


def test_the_page_about_layouts_shows_a_program_that_runs(marud):
    page = (EXAMPLES.parents[1] / "layouts.md").read_text()
    program, output = re.search(r"```python\n(.*?)```\n\nIt prints\n\n```\n(.*?)```", page, re.DOTALL).groups()
    assert program == (EXAMPLES / "reslice.py").read_text()
    done = subprocess.run([sys.executable, EXAMPLES / "reslice.py"], env=marud.environment, capture_output=True, text=True,
                          timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")
    # Of the first of the four ranks.
    shown = layout.Layout.from_json(re.search(r"```json\n(.*?)```", page, re.DOTALL)[1])
    assert shown == layout.Layout(layers=32, heads=8, head_dim=128, page_tokens=16, blocks=1, dtype="float16",
                                  order="hnd").slice(4, 0)


def test_the_pool_that_the_page_about_lmcache_shows_can_be_configured(marud_program, tmp_path):
    page = (EXAMPLES.parents[1] / "python" / "lmcache.md").read_text()
    config = tmp_path / "marud.toml"
    config.write_text(re.search(r"```toml\n(.*?)```", page, re.DOTALL)[1].replace('users = ["llm"]', 'users = ["root"]'))
    done = subprocess.run([marud_program, "--config", config, "--check-config"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_about_blending_shows_a_program_that_runs(marud):
    page = (EXAMPLES.parents[1] / "blend.md").read_text()
    program, output = re.search(r"```python\n(.*?)```\n\nIt prints\n\n```\n(.*?)```", page, re.DOTALL).groups()
    done = subprocess.run([sys.executable, "-c", program], env=marud.environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")


def test_more_recomputation_is_nearer_to_full_computation(marud):
    done = subprocess.run([sys.executable, EXAMPLES / "blend.py", "--chunks", "2", "--prompts", "2"], env=marud.environment,
                          capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("293 tokens, 8 chunks found, 256 tokens of them stored\n")
    differences = [float(difference) for difference in re.findall(r"^\| \d+% \| ([\d.]+)", done.stdout, re.MULTILINE)]
    assert len(differences) == 6 and differences == sorted(differences, reverse=True)
    assert differences[0] > 0.05 and differences[-1] < 0.0005, "all recomputed is full computation"
