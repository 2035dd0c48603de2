"""The numpy functions."""

import json
import multiprocessing
import pickle
import threading

import numpy as np
import pytest

import subdeq

TWO = np.array([[1.0, -1.0], [-1.0, 1.0]])


def test_degrees_are_those_of_the_paper():
    assert subdeq.degree("tanh", shift=1.2, domain="nonnegative") == pytest.approx(0.246994, abs=1e-6)
    assert subdeq.degree("softsign", shift=1.2) < 1
    with pytest.raises(ValueError, match="domain must be"):
        subdeq.degree("tanh", domain="half")
    with pytest.raises(ValueError):
        subdeq.degree("swish")


def test_a_refutation_has_its_fixed_points():
    certificate = subdeq.certify(TWO, map="subdeq-tanh")
    assert (certificate.verdict, certificate.proven, certificate.theorem, certificate.factor) == ("refuted", False, None, None)
    y = np.array(certificate.injection)
    for z in np.array(certificate.witnesses):
        assert np.abs(np.tanh(TWO @ z) + y + 1.2 - z).max() < 1e-6
    assert "more than one" in str(certificate)


def test_a_proof_says_what_it_is_about():
    certificate = subdeq.certify(TWO, map="split-sign")
    assert certificate.proven and certificate.metric == "thompson" and "A3" in certificate.theorem
    assert certificate.inputs == "for every input y >= 0"
    assert "softsign(W+ z)" in certificate.equation
    assert json.loads(certificate.to_json())["verdict"]["kind"] == "proven"
    assert "proven" in repr(certificate)
    assert subdeq.certify(TWO, map="split-sign", inputs="all").verdict == "unproven"
    assert subdeq.certify(TWO, map="split-sign", injection=[-0.5, 3.0]).inputs == "for this input"


def test_rechecking_needs_the_right_weights():
    certificate = subdeq.certify(0.4 * TWO, map="subdeq-tanh", inputs="all")
    assert certificate.proven
    certificate.recheck()
    read = subdeq.Certificate.from_json(certificate.to_json())
    assert read == certificate and pickle.loads(pickle.dumps(certificate)) == certificate
    read.recheck(0.4 * TWO)
    with pytest.raises(ValueError, match="does not hold the weights"):
        read.recheck()
    with pytest.raises(ValueError):
        read.recheck(TWO)
    with pytest.raises(ValueError, match="not a certificate"):
        subdeq.Certificate.from_json("{}")


def test_convolutions_and_graphs_are_certified():
    kernel = np.random.default_rng(0).normal(size=(3, 3, 3, 3))
    assert subdeq.certify(kernel, map="split-sign", size=(6, 5)).proven
    ring = np.roll(np.eye(5), 1, 0) / 2 + np.roll(np.eye(5), -1, 0) / 2
    assert subdeq.certify(ring, map="appnp-tanh").proven


@pytest.mark.parametrize("map", [name for name in subdeq.MAPS if name != "gains"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_solutions_of_every_map(map, dtype):
    rng = np.random.default_rng(1)
    W = rng.normal(size=(6, 6)) / 6
    if map == "row-signed":
        W = np.abs(W) * np.where(np.arange(6) % 3, 1, -1)[:, None]
    if map.startswith("mon"):
        W = W - 0.5 * np.eye(6)
    y = rng.uniform(0, 1, size=(4, 12 if map == "power-ratio" else 6))
    solution = subdeq.solve(W, y, map=map, dtype=dtype, tol=1e-5).require_converged()
    assert solution.z.shape == (4, 6) and solution.z.dtype == dtype
    assert (solution.residual <= 1e-5).all() and (solution.iterations > 0).all()
    if map in ("split-sign", "excitatory", "monotone"):
        assert (solution.error_bound < 1e-2).all()
    if map == "subdeq-tanh":
        assert np.abs(np.tanh(solution.z @ W.T) + y + 1.2 - solution.z).max() < 1e-4


def test_images_are_channel_first():
    rng = np.random.default_rng(2)
    W, y = rng.normal(size=(3, 3, 3, 3)) / 9, rng.uniform(0, 1, size=(2, 3, 5, 4))
    z = subdeq.solve(W, y, map="subdeq-tanh", dtype=np.float64, tol=1e-12).require_converged().z
    padded = np.pad(z, ((0, 0), (0, 0), (1, 1), (1, 1)))
    Wz = sum(
        np.einsum("oi,bihw->bohw", W[:, :, i, j], padded[:, :, i : i + 5, j : j + 4]) for i in range(3) for j in range(3)
    )
    assert np.abs(np.tanh(Wz) + y + 1.2 - z).max() < 1e-10


def test_what_does_not_converge_says_so():
    solution = subdeq.solve(TWO, np.zeros((3, 2)), map="subdeq-tanh", max_iter=1, tol=1e-9, solver="picard")
    assert not solution.converged and set(solution.outcome) == {"iteration-limit"}
    with pytest.raises(subdeq.NotConverged, match="3 of 3"):
        solution.require_converged()


def test_refusals_are_sentences():
    for call, words in [
        (lambda: subdeq.solve(TWO, np.zeros((1, 3))), "batch x 2"),
        (lambda: subdeq.solve(np.zeros((2, 3)), np.zeros((1, 3))), "n x n"),
        (lambda: subdeq.solve(TWO, np.array([[0.0, np.nan]])), "finite"),
        (lambda: subdeq.solve(np.array([[np.inf, 0], [0, 0]]), np.zeros((1, 2))), "finite"),
        (lambda: subdeq.solve(TWO, np.zeros((1, 2)), map="transformer"), "known are"),
        (lambda: subdeq.solve(TWO, np.zeros((1, 2)), solver="newton"), "no solver"),
        (lambda: subdeq.solve(TWO, np.zeros((1, 2)), tol=-1), "tolerance"),
        (lambda: subdeq.solve(TWO, np.zeros((1, 2)), map="gains"), "two weight arrays"),
        (lambda: subdeq.solve(5 * np.eye(2), np.zeros((1, 2)), map="monotone"), "not monotone"),
        (lambda: subdeq.certify(np.zeros((2, 3))), "n x n"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(subdeq.NoCertificate):
        subdeq.solve(TWO, np.zeros((1, 2)), map="subdeq-tanh", stop="certified")
    with pytest.raises(TypeError):
        subdeq.solve(TWO, np.zeros((1, 2)), tolerance=1e-3)


def test_empty_batches_and_other_layouts():
    assert subdeq.solve(TWO, np.zeros((0, 2))).z.shape == (0, 2)
    rng = np.random.default_rng(3)
    y = rng.uniform(size=(6, 4))
    W = rng.normal(size=(2, 2))
    straight = subdeq.solve(W, np.ascontiguousarray(y[:, ::2])).z
    assert (subdeq.solve(W, y[:, ::2]).z == straight).all()
    assert (subdeq.solve(np.asfortranarray(W), np.asfortranarray(y[:, ::2])).z == straight).all()


def test_the_interpreter_is_free_during_a_solve():
    rng = np.random.default_rng(4)
    W, y = rng.normal(size=(400, 400)) / 20, rng.uniform(size=(400, 400))
    inside, seen, done = threading.Event(), 0, threading.Event()

    def work():
        inside.set()
        subdeq.solve(W, y, map="split-sign", solver="picard", tol=0.0, max_iter=300, dtype=np.float64)
        inside.clear()
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.wait(0.001):
        seen += inside.is_set()
    thread.join()
    assert seen > 3, "no Python ran while the engine solved"


def test_threads_solve_at_once():
    rng = np.random.default_rng(5)
    problems = [(rng.normal(size=(30, 30)) / 6, rng.uniform(size=(64, 30))) for _ in range(4)]
    expected = [subdeq.solve(W, y).z for W, y in problems]
    found = [None] * 4

    def work(k):
        for _ in range(20):
            found[k] = subdeq.solve(*problems[k]).z

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((a == b).all() for a, b in zip(found, expected))


def _solve_in_child(queue):
    kernel = np.zeros((2, 2, 3, 3))
    kernel[:, :, 1, 1] = -0.5 * np.eye(2)
    dense = subdeq.solve(TWO, np.zeros((1, 2))).z
    # The monotone convolutions are those that wait for a pool of threads.
    conv = subdeq.solve(kernel, np.ones((1, 2, 8, 8)), map="monotone").z
    queue.put((dense, conv))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
def test_a_forked_child_solves_too():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    _solve_in_child(queue)
    here = queue.get(timeout=60)
    child = context.Process(target=_solve_in_child, args=(queue,))
    child.start()
    there = queue.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    assert all((a == b).all() for a, b in zip(here, there))


def test_the_number_of_threads_changes_nothing_but_time():
    rng = np.random.default_rng(6)
    W, y = rng.normal(size=(40, 40)) / 6, rng.uniform(size=(100, 40))
    several = subdeq.solve(W, y).z
    before = subdeq.num_threads()
    try:
        subdeq.set_num_threads(1)
        assert subdeq.num_threads() == 1
        assert (subdeq.solve(W, y).z == several).all()
    finally:
        subdeq.set_num_threads(0)
    assert subdeq.num_threads() == before
    with pytest.raises(ValueError):
        subdeq.set_num_threads(10**6)
