"""Networks: rates by mass action, balances, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rematax import reactors

AB = ("A", "B")

SERIES = reactors.Network(("A", "B", "C"), [[-1, 0], [1, -1], [0, 1]])


def test_prints_its_reactions():
    network = reactors.Network(("A", "B", "C"), [[-2, 0, 1], [1, -1, 0], [0.5, -1, -1]])
    assert repr(network) == "Network(2 A -> B + 0.5 C, B + C -> nothing, C -> A)"


@pytest.mark.parametrize(
    ("orders", "shown"),
    [
        ([[1, 0], [0, 0]], "Network(A -> B, nothing -> B)"),
        ([[0.5, 0], [0, 0]], "Network(A -> B [rate ~ A^0.5], nothing -> B)"),
        ([[1, 0], [1, 0]], "Network(A -> B [rate ~ A B], nothing -> B)"),
        ([[0, 2], [0, 0]], "Network(A -> B [rate ~ 1], nothing -> B [rate ~ A^2])"),
    ],
)
def test_prints_the_orders_that_are_not_elementary(orders, shown):
    assert repr(reactors.Network(AB, [[-1, 0], [1, 1]], orders)) == shown


def test_can_be_a_static_argument():
    rates = jax.jit(lambda network, c, k: network.rates(c, k), static_argnums=0)
    again = reactors.Network(["A", "B", "C"], np.array([[-1, 0], [1, -1], [0, 1]]))
    assert again == SERIES and hash(again) == hash(SERIES)
    assert rates(again, jnp.array([2.0, 3.0, 0.0]), jnp.array([1.0, 0.5])).tolist() == [2.0, 1.5]


def test_elementary_orders_are_the_moles_consumed():
    network = reactors.Network(("A", "B", "C"), [[-2], [-1], [1]])
    assert network.rates(jnp.array([3.0, 5.0, 7.0]), [2.0]).tolist() == [2.0 * 3.0**2 * 5.0]


def test_orders_of_ones_own(x64):
    # autocatalysis: A + B -> 2 B, and a constant source of A
    network = reactors.Network(("A", "B"), [[-1, 1], [1, 0]], orders=[[1, 0], [1, 0]])
    assert network.rates(jnp.array([3.0, 5.0]), (2.0, 7.0)).tolist() == [30.0, 7.0]
    half = reactors.Network(("A",), [[-1]], orders=[[1.5]])
    assert np.isclose(half.rates(jnp.array([2.0]), [3.0])[0], 3 * 2**1.5, rtol=1e-15)


def test_cells_and_rate_constants_of_each_cell():
    c = SERIES.feed({"A": np.linspace(1, 2, 4), "B": 0.5})
    assert c.shape == (3, 4)
    k = (jnp.arange(4.0), 2.0)
    together = SERIES.production(SERIES.rates(c, k))
    for i in range(4):
        alone = SERIES.production(SERIES.rates(c[:, i], (float(k[0][i]), 2.0)))
        assert jnp.array_equal(together[:, i], alone)


def test_production_is_the_matrix_product():
    key = jax.random.key(0)
    matrix = np.array([[-1, 0, 2], [1, -1, 0], [0, 0, 0], [0, 1, -1]], np.float32)
    network = reactors.Network(tuple("ABCD"), matrix)
    rates = jax.random.normal(key, (3, 5))
    np.testing.assert_allclose(network.production(rates), matrix @ np.asarray(rates), rtol=1e-6)


def test_gradient_puts_the_state_together_at_once():
    # A slice for each use would be transposed to a padding and a sum: slow to compile and to run.
    def made(c, k):
        return (SERIES.production(SERIES.rates(c, k)) ** 2).sum()

    program = jax.make_jaxpr(jax.grad(made, argnums=(0, 1)))(jnp.ones(3), jnp.ones(2))
    assert "pad[" not in str(program)


@pytest.mark.parametrize("order", [0.3, 0.5, 1.5, 2.5])
def test_fractional_orders_have_finite_gradients_at_zero(order, x64):
    network = reactors.Network(("A", "B"), [[-1], [1]], orders=[[order], [1]])
    step = reactors.euler(lambda c, u: network.production(network.rates(c, (2.0,))), 0.1)

    @jax.jit
    def derivatives(c):
        end = jax.grad(lambda c: jax.lax.scan(step, c, length=20)[0][1])(c)
        return jax.hessian(lambda c: network.rates(c, (2.0,)))(c), end

    for a in (0.0, -1e-3, 1e-30):
        assert all(jnp.isfinite(d).all() for d in derivatives(jnp.array([a, 0.0])))


def test_fractional_order_has_the_right_derivative_elsewhere(x64):
    network = reactors.Network(("A",), [[-1]], orders=[[0.5]])
    slope = jax.jacobian(network.rates)(jnp.array([4.0]), jnp.array([3.0]))
    assert np.isclose(float(slope[0, 0]), 3 * 0.5 / 2)


@st.composite
def weighed_networks(draw):
    """A network whose reactions conserve the masses given, and a state."""
    species = draw(st.integers(2, 5))
    whole = st.integers(-2, 2)
    masses = [1, *draw(st.lists(st.integers(1, 4), min_size=species - 1, max_size=species - 1))]
    columns = []
    for _ in range(draw(st.integers(1, 4))):
        free = draw(st.lists(whole, min_size=species - 1, max_size=species - 1))
        # the first species, of mass one, takes up what the others leave
        first = -sum(m * nu for m, nu in zip(masses[1:], free, strict=True))
        columns.append([first, *free])
    reactions = len(columns)
    row = st.lists(st.sampled_from([0, 0, 1, 2, 0.5]), min_size=reactions, max_size=reactions)
    orders = draw(st.lists(row, min_size=species, max_size=species))
    network = reactors.Network(tuple("ABCDE")[:species], np.transpose(columns), orders)
    concentrations = draw(st.lists(st.floats(0, 2), min_size=species, max_size=species))
    return network, np.array(masses, float), np.array(concentrations)


@settings(max_examples=25)
@given(weighed_networks(), st.sampled_from([reactors.euler, reactors.midpoint, reactors.rk4]))
def test_mass_is_conserved(drawn, stepper):
    network, masses, c = drawn
    with jax.enable_x64(True):
        k = np.linspace(0.1, 1, len(network.stoichiometry[0]))
        step = stepper(lambda c, u: network.production(network.rates(c, k)), 1e-3)
        before = jnp.asarray(c)
        after = jax.jit(lambda c: jax.lax.scan(step, c, length=5)[0])(before)
        moved = 1 + float(abs(after).max())
        assert abs(float(masses @ np.asarray(after - before))) < 1e-13 * moved * masses.sum()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((("A", "B", "A"), [[1], [1], [1]]), "'A' is named twice"),
        ((AB, [[-1, 1], [1, -1], [0, 1]]), r"2 species .* has shape \(3, 2\); transpose it"),
        ((AB, [[-1, 1, 0]]), r"row for each of the 2 species .* has shape \(1, 3\)"),
        ((AB, [-1, 1]), r"has shape \(2,\)"),
        ((AB, [[-1], [1, 2]]), "rows of different lengths"),
        ((AB, [[], []]), r"a column for each reaction, but has shape \(2, 0\)"),
        ((AB, [[-1], [1]], [[1, 0], [0, 1]]), r"must have the shape .* \(2, 1\), not \(2, 2\)"),
        ((AB, [[-1], [1]], [[-1], [0]]), "order of a reaction must not be negative, not -1"),
    ],
)
def test_refuses_a_network_that_is_none(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        reactors.Network(*arguments)


def test_refuses_what_does_not_fit():
    c = SERIES.feed({"A": 1.0})
    with pytest.raises(ValueError, match="'D' is none of the species A, B, C"):
        SERIES.feed({"D": 1.0})
    with pytest.raises(ValueError, match="concentration of A must not be negative, not -1"):
        SERIES.feed({"A": [1.0, -1.0]})
    with pytest.raises(ValueError, match="must not be negative, not nan"):
        SERIES.feed({"A": float("nan")})
    with pytest.raises(ValueError, match=r"rate constant must not be negative, not -0.5"):
        SERIES.rates(c, (1.0, -0.5))
    with pytest.raises(ValueError, match="state needs a first axis of the 3 species"):
        SERIES.rates(c[:2], (1.0, 0.5))
    with pytest.raises(ValueError, match=r"k needs a first axis of the 2 reactions .* length 3"):
        SERIES.rates(c, (1.0, 0.5, 0.1))
    with pytest.raises(ValueError, match="it has none"):
        SERIES.rates(c, jnp.array(1.0))
    with pytest.raises(ValueError, match="rates needs a first axis of the 2 reactions"):
        SERIES.production(c)


def test_numbers_where_arrays_are_due_and_numbers_that_are_none():
    network = reactors.Network(("A", "B"), [[-1], [1]])
    for wrong in (lambda: network.rates(jnp.ones(2), 2.0), lambda: network.production(3.0)):
        with pytest.raises(ValueError, match=r"needs a first axis of the 1 reactions.*it has none"):
            wrong()
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be of finite numbers"):
            reactors.Network(("A",), [[number]])
        with pytest.raises(ValueError, match="must be of finite numbers"):
            reactors.Network(("A",), [[-1]], orders=[[number]])


def test_names_are_wanted_as_names():
    with pytest.raises(TypeError, match="species must be a list of names, not the text 'AB'"):
        reactors.Network("AB", [[-1], [1]])
    with pytest.raises(TypeError, match=r"by name, such as \{'A': 1.0\}, not a list"):
        reactors.Network(("A", "B"), [[-1], [1]]).feed([1.0, 2.0])


@pytest.mark.parametrize("species", [3, {"A", "B"}, (1, 2), None, [[-1], [1]]])
def test_species_are_a_list_of_names(species):
    with pytest.raises(TypeError, match=r"reactors\.Network: species must be a list of names"):
        reactors.Network(species, [[-1], [1]])


@pytest.mark.parametrize("matrix", [None, "AB", [["-1"], ["1"]], [[1j], [1]]])
def test_matrices_are_of_numbers(matrix):
    for arguments in ((matrix,), ([[-1], [1]], matrix)):
        if arguments[-1] is None and len(arguments) == 2:
            continue  # the default orders
        with pytest.raises(TypeError, match=r"reactors\.Network: an entry of the .*matrix.*real"):
            reactors.Network(AB, *arguments)
    with pytest.raises(TypeError, match=r"not of traced values.*outside of jax\.jit"):
        jax.jit(lambda s: reactors.Network(AB, s))(jnp.array([[-1.0], [1.0]]))


def test_cells_must_fit_together():
    network = reactors.Network(AB, [[-1], [1]])
    with pytest.raises(ValueError, match=r"Network\.feed: the shapes .* A \(2,\), B \(3,\)"):
        network.feed({"A": np.ones(2), "B": np.ones(3)})
    with pytest.raises(
        ValueError, match=r"Network\.rates: the shapes .* c\[0\] \(4,\).* k\[0\] \(3,"
    ):
        network.rates(jnp.ones((2, 4)), [jnp.ones(3)])
    with pytest.raises(ValueError, match=r"Network\.production: the shapes .*rates\[1\] \(3,\)"):
        reactors.Network(AB, [[-1, 1], [1, -1]]).production([jnp.ones(2), jnp.ones(3)])
    with pytest.raises(TypeError, match=r"Network\.production: rates: an entry must be a real num"):
        network.production(["fast"])
    with pytest.raises(TypeError, match=r"the concentration of A must be a real number"):
        network.feed({"A": None})
