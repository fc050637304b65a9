"""The streaming client against a real HTTP server that answers as SGLang does."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from paceline.policies.acceptance import Tally
from paceline.rig.prompts import Prompt
from paceline.rig.readiness import free_port
from paceline.rig.traffic import Arrival, Served, longest_gap_ms, pooled, send, tokens_per_second


class Streamer(BaseHTTPRequestHandler):
    """Streams the prompt backwards, two tokens a chunk, each chunk with everything so far."""

    bodies: list[dict]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        if body["rid"].startswith("refused"):
            self.send_error(400)
            return
        self.send_response(200)
        self.end_headers()
        events = [json.dumps({"error": {"message": "too long"}})] if body["rid"].startswith("error") else chunks(body)
        for event in [*events, "[DONE]"]:
            self.wfile.write(f"data: {event}\n\n".encode())

    def log_message(self, *words: object) -> None:
        pass


def chunks(body: dict) -> Iterator[str]:
    output = body["input_ids"][::-1]
    for end in range(2, len(output) + 1, 2):
        meta = {"finish_reason": {"type": "length"} if end == len(output) else None, "num_retractions": 1}
        spec = {"spec_num_correct_drafts": end // 2, "spec_verify_ct": end - end // 2}
        yield json.dumps({"output_ids": output[:end], "meta_info": meta | spec})


@pytest.fixture
def server_url() -> Iterator[str]:
    Streamer.bodies = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Streamer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def prompt(name: str, *ids: int) -> Prompt:
    return Prompt(name, "py", ids)


def served(sent_at: float, *arrivals: tuple[float, int], accepted: int = 0, rounds: int = 0) -> Served:
    came = tuple(Arrival(at, tokens) for at, tokens in arrivals)
    output = tuple(range(came[-1].tokens)) if came else ()
    return Served(
        prompt=prompt("r"),
        sent_at=sent_at,
        arrivals=came,
        output_ids=output,
        finish="length",
        tally=Tally(accepted, rounds),
        retractions=0,
    )


def test_a_request_is_recorded_as_it_streamed(server_url: str) -> None:
    (result,) = asyncio.run(send(server_url, [prompt("a", 1, 2, 3, 4)], concurrency=2, max_tokens=4))
    assert (result.output_ids, result.finish, result.failure) == ((4, 3, 2, 1), "length", "")
    assert (result.tally, result.retractions) == (Tally(2, 2), 1)
    assert [arrival.tokens for arrival in result.arrivals] == [2, 4]
    assert result.sent_at <= result.arrivals[0].at <= result.arrivals[1].at == result.done_at


def test_prompts_go_out_greedy_and_in_order_and_each_once(server_url: str) -> None:
    prompts = [prompt(f"r{number}", number, 7) for number in range(9)]
    seen: list[str] = []
    results = asyncio.run(
        send(server_url, prompts, concurrency=1, max_tokens=5, on_served=lambda r: seen.append(r.prompt.request_id))
    )
    assert [body["rid"] for body in Streamer.bodies] == [p.request_id for p in prompts] == seen
    assert Streamer.bodies[0]["sampling_params"] == {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": 5}
    assert [result.prompt for result in results] == prompts


def test_a_request_names_its_domain_as_its_label_where_that_is_asked_for(server_url: str) -> None:
    asyncio.run(send(server_url, [prompt("a", 1, 2)], concurrency=1, max_tokens=5, temperature=0.5, is_labelled=True))
    asked = {"temperature": 0.5, "ignore_eos": True, "max_new_tokens": 5}
    assert Streamer.bodies[0]["sampling_params"] == {**asked, "custom_params": {"paceline_label": "py"}}


def test_workers_share_the_prompts(server_url: str) -> None:
    prompts = [prompt(f"r{number}", number, 7) for number in range(20)]
    results = asyncio.run(send(server_url, prompts, concurrency=4, max_tokens=2))
    assert sorted(result.prompt.request_id for result in results) == sorted(p.request_id for p in prompts)


def test_no_request_is_sent_before_the_gate_is_open(server_url: str) -> None:
    async def meet_a_closed_gate() -> tuple[int, list[Served]]:
        gate = asyncio.Event()
        sending = asyncio.create_task(send(server_url, [prompt("a", 1, 2)], concurrency=1, max_tokens=2, gate=gate))
        await asyncio.wait({sending}, timeout=0.2)
        before = len(Streamer.bodies)
        gate.set()
        return before, await sending

    before, (result,) = asyncio.run(meet_a_closed_gate())
    assert (before, result.output_ids) == (0, (2, 1))


def test_refusals_are_results_with_a_failure_and_the_rest_goes_on(server_url: str) -> None:
    prompts = [prompt("refused", 1), prompt("error", 2), prompt("fine", 3, 4)]
    refused, error, fine = asyncio.run(send(server_url, prompts, concurrency=1, max_tokens=2))
    assert refused.failure.startswith("ValueError: HTTP 400")
    assert error.failure == "ValueError: too long"
    assert (refused.output_ids, error.finish, fine.output_ids, fine.failure) == ((), "", (4, 3), "")


def test_a_server_that_is_gone_is_a_failure_too() -> None:
    (result,) = asyncio.run(send(f"http://127.0.0.1:{free_port()}", [prompt("a", 1)], concurrency=1, max_tokens=1))
    assert result.failure.startswith("ConnectError")
    assert result.done_at == result.sent_at


def test_accept_length_is_pooled_over_rounds_and_not_averaged_over_requests() -> None:
    results = [served(0, (1, 4), accepted=9, rounds=3), served(0, (1, 4), accepted=0, rounds=6)]
    assert pooled(results) == Tally(9, 9)
    assert pooled(results).accept_length == 2.0


def test_the_longest_gap_is_of_one_request_and_touches_the_window() -> None:
    results = [served(0, (1.0, 1), (1.5, 2), (3.5, 3)), served(0, (1.0, 1), (1.25, 2), (9.0, 3))]
    assert longest_gap_ms(results, (1.1, 1.2)) == 500.0
    assert longest_gap_ms(results, (1.1, 1.5)) == 7750.0
    assert longest_gap_ms(results[:1], (2.0, 2.0)) == 2000.0
    assert longest_gap_ms(results, (10.0, 11.0)) is None


def test_throughput_counts_all_tokens_over_the_whole_span() -> None:
    assert tokens_per_second([served(10.0, (11.0, 4)), served(10.5, (14.0, 8))]) == 3.0
    assert tokens_per_second([]) == 0.0
