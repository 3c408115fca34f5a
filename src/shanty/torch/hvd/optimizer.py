"""DistributedOptimizer: the user's optimizer, which first averages the gradients of all ranks.

Each gradient is sent off as soon as the backward pass has made it, while the rest of the backward
pass goes on; `step` waits for them.

With op=Adasum each rank makes its own step, and the steps are combined: Adasum is defined on what a
step changes, not on gradients. Only so it is right for optimizers that do more than scale the
gradient (Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020, section 4).
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from types import new_class
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from shanty.collectives import call_sites, gradient_groups, survivors, world
from shanty.collectives.errors import HorovodInternalError
from shanty.collectives.process_sets import ProcessSet, global_process_set
from shanty.collectives.request import Op
from shanty.torch.hvd import agreement, ops
from shanty.torch.hvd.compression import Compression
from shanty.torch.hvd.functions import broadcast_object
from shanty.torch.hvd.gradients import Gradient, Reduction, Unit

Template = TypeVar("Template", bound=torch.optim.Optimizer)

_MODULE = "shanty.torch.hvd.optimizer"  # Horovod's scripts compare it with DistributedOptimizer's
_NOT_TAKEN = frozenset({"__dict__", "__weakref__", "__doc__", "__annotations__"})
_INSTANCE_OF_ITS_OWN = frozenset({"step"})  # a learning rate scheduler leaves its patch there

# Which optimizer reduces the gradient of a parameter: the optimizer made last.
_reducers: Any = WeakTensorKeyDictionary()  # of weak references
_living: weakref.WeakSet[Reducing] = weakref.WeakSet()

Closure = Callable[[], Any]
Groups = int | Sequence[Sequence[Tensor]]


class Reducing(torch.optim.Optimizer):
    """The methods that `wrap` puts into a subclass of the user's class."""

    _user_class: ClassVar[type[torch.optim.Optimizer]]

    def begin_reducing(
        self,
        wrapped: torch.optim.Optimizer,
        names: dict[Tensor, str],
        how: Reduction,
        groups: Groups | None,
    ) -> None:
        """Take the place of a constructor. Collective where there are groups."""
        self._wrapped = wrapped
        self._parameter_names = names
        self._reduction = how
        self._units: list[Unit] = []
        self._gradients: dict[Tensor, Gradient] = {}  # of the parameters that have a hook
        self._frozen: list[Tensor] = []  # the others
        self._synchronized = False
        self._should_synchronize = True
        self._left_over = False  # another optimizer made its step while these were being reduced
        self._taken: list[str] = []  # parameters that a later optimizer reduces
        self._taken_at = ""  # where that one is made
        self._site = call_sites.caller()  # where it is made
        self._agreement = agreement.Agreement()
        # One process has nothing to reduce, and runs as fast as without.
        self._reduces = bool(how.process_set.included()) and (how.process_set.size() or 0) > 1
        self._adopt(groups)

    op = property(attrgetter("_reduction.op"), doc="The way to combine gradients of all ranks.")
    process_set = property(
        attrgetter("_reduction.process_set"), doc="The ranks whose gradients are combined."
    )
    gradient_predivide_factor = property(
        attrgetter("_reduction.predivide"),
        doc="The divisor of gradients before they are summed, and their factor after it.",
    )
    sparse_as_dense = property(
        attrgetter("_reduction.sparse_as_dense"),
        doc="True if sparse gradients are reduced as dense ones.",
    )

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number, between two steps."""
        if passes <= 0:
            raise ValueError(f"backward_passes_per_step={passes}: must be 1 or more.")
        self._reduction.passes = passes
        for each in self._gradients.values():
            each.left = passes

    backward_passes_per_step = property(
        attrgetter("_reduction.passes"),
        set_backward_passes_per_step,
        doc="Backward passes that are added up before gradients are reduced.",
    )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether the user's class unscales by itself. GradScaler.step() asks, before all else.

        AssertionError while gradients are being reduced: it would look for an overflow, and
        unscale, in gradients that are this rank's in part.
        """
        if self._reduction.begun and self._should_synchronize:
            raise AssertionError(
                "GradScaler.step() was called while gradients are being reduced. After backward(), "
                "call optimizer.synchronize() before scaler.unscale_(optimizer), and call "
                "scaler.step(optimizer) within `with optimizer.skip_synchronize():`."
            )
        return bool(vars(self).get("_step_supports_amp_scaling"))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        vars(self)["_step_supports_amp_scaling"] = value

    def _adopt(self, groups: Groups | None) -> None:
        """Hook the parameters that are trained now and were not before."""
        if not self._reduces:
            return
        new: list[Gradient] = []
        self._frozen = []
        for parameter, place in places(self):
            if not parameter.requires_grad:
                self._frozen.append(parameter)
            elif parameter not in self._gradients:
                name = self._parameter_names.setdefault(parameter, place)
                each = self._gradients[parameter] = Gradient(name, parameter, self._reduction)
                new.append(each)
        parts = (
            [[each] for each in new] if groups is None else _grouped(new, groups, self.process_set)
        )
        self._units += map(Unit, parts)
        hook = "register_post_accumulate_grad_hook"  # whose type torch does not tell
        for each in new:
            former = _reducers.get(each.parameter, lambda: None)()
            if former is not None:
                former.give_up(each.parameter, self)
            _reducers[each.parameter] = weakref.ref(self)
            each.hook = getattr(each.parameter, hook)(each.accumulated)
        # The parameters outlive this optimizer: so would its hooks, beside those of the next.
        weakref.finalize(self, lambda: [each.hook.remove() for each in new]).atexit = False
        _living.add(self)

    def give_up(self, parameter: Tensor, later: Reducing) -> None:
        """Leave the gradient of a parameter to an optimizer that was made later."""
        each = self._gradients[parameter]
        each.unit.drop()
        each.hook.remove()
        self._taken_at = call_sites.spell(later._site)
        self._taken.append(each.name.removeprefix("allreduce.noname."))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the user's class has it; its gradients are reduced from now on, too."""
        self._user_class.add_param_group(self, param_group)
        self._adopt(None)

    def synchronize(self) -> None:
        """Wait until all gradients are reduced. Where this rank has none, zeros are given.

        Raises HorovodInternalError; the optimizer can be used after that.
        """
        if self._taken:
            raise ValueError(
                f"DistributedOptimizer: another one, created later at {self._taken_at}, has taken "
                f"over {len(self._taken)} parameters of this one ({self._taken[0]}, for example), "
                "and reduces their gradients. Give each parameter to one DistributedOptimizer "
                "only, or create the next one when this one has made its last step."
            )
        if self._reduces:
            if any(parameter.requires_grad for parameter in self._frozen):
                self._adopt(None)
            for unit in self._units:
                unit.submit()
            failed = [error for unit in self._units if (error := _finish(unit)) is not None]
            self._reduction.begun = self._left_over = False
            if failed:
                raise failed[0]
            if self._gradients:
                passes = {"backward_passes_per_step": self._reduction.passes}
                self._agreement.check(
                    lambda: {each.name: each.parameter for each in self._gradients.values()},
                    [*self.param_groups, passes],
                    self.process_set,
                )
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it `step` takes the gradients as they are: after a call of `synchronize`."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Closure | None = None) -> Any:
        """Reduce the gradients, then make the step of the user's class.

        With a closure the gradients that it computes are reduced, each time that it is called.
        """
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    # Tests of scripts look for the first sentence, which is Horovod's.
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). All gradients are reduced once more. "
                    "Call step() within `with optimizer.skip_synchronize():`.",
                    stacklevel=2,
                )
            if closure is None or self._reduction.begun:
                self.synchronize()
            if closure is not None:
                closure = self._reduced(closure)
        self._synchronized = False
        for other in _living:
            other._left_over = other._reduction.begun and other is not self
        # For a scheduler that was made for the optimizer before it was wrapped.
        self._wrapped._opt_called = True  # type: ignore[attr-defined]
        step = self._user_class.step
        return step(self) if closure is None else step(self, closure)

    def _reduced(self, closure: Closure) -> Closure:
        def reduced() -> Any:
            loss = closure()
            self.synchronize()
            self._synchronized = False
            if self._reduces and isinstance(self, torch.optim.LBFGS):
                # It decides by the loss how to go on, and all ranks must decide the same.
                whole = torch.as_tensor(loss).detach()
                loss = ops.allreduce(
                    whole, name="DistributedOptimizer.loss", process_set=self.process_set
                )
            return loss

        return reduced

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the user's class has it. AssertionError while gradients are being reduced.

        Gradients that were there when another DistributedOptimizer made its step are dropped: the
        generator's loss of a GAN, for example, leaves some in the discriminator.
        """
        if self._left_over:
            for unit in self._units:
                unit.drop()
            self._reduction.begun = self._left_over = False
        if self._reduction.begun:
            raise AssertionError(
                "zero_grad() was called after backward() but before step() or synchronize(), "
                "while gradients are being reduced. To drop them, call synchronize() first."
            )
        zero_grad = self._user_class.zero_grad  # which may know of no argument
        zero_grad(self) if set_to_none else zero_grad(self, set_to_none=False)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the user's class has it; gradients under way are given up."""
        for unit in self._units:
            unit.forget()
        self._reduction.begun = self._synchronized = self._left_over = False
        self._should_synchronize = True
        self._user_class.load_state_dict(self, state_dict)
        # It has replaced these.
        self._wrapped.param_groups, self._wrapped.state = self.param_groups, self.state


def _finish(unit: Unit) -> Exception | None:
    """The error that it ended with: the others are waited for all the same."""
    try:
        unit.finish()
    except (HorovodInternalError, AssertionError) as error:
        return error
    return None


def _grouped(new: list[Gradient], groups: Groups, process_set: ProcessSet) -> list[list[Gradient]]:
    """Return the groups asked for. All ranks take the order that the first of them has.

    In an elastic run that of the names: where a new rank comes here, the others are training.
    """
    first = world.rank() if process_set.ranks is None else process_set.ranks[0]
    names = [each.name for each in new]
    if survivors.is_elastic():
        order = sorted(names)
    else:
        order = broadcast_object(names, root_rank=first, process_set=process_set)
    position = {name: i for i, name in enumerate(order)}
    new = sorted(new, key=lambda each: position.get(each.name, len(position)))
    places = gradient_groups.split([each.parameter for each in new], groups)
    return [[new[place] for place in part] for part in places]


def _check_tensors(groups: Sequence[Sequence[Any]]) -> None:
    """Raise ValueError unless these are tensors, each of them in one group."""
    tensors = [each for group in groups for each in group]
    if not all(isinstance(each, Tensor) for each in tensors):
        raise ValueError("groups: must be lists of tensors, or a number of groups.")
    if len(set(tensors)) < len(tensors):
        raise ValueError("groups: a parameter occurs twice.")


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Op = Op.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """An optimizer of the same class whose steps use the gradients of all ranks.

    Each gradient is reduced as soon as backward() has made it. To change gradients (to clip them,
    for example) call `synchronize()` after backward(), and `step()` within `skip_synchronize()`.

    optimizer: any of torch.optim or like them; the new one shares its state.
    named_parameters: pairs of name and parameter, as from `model.named_parameters()`. Names tell
        ranks which gradients belong together; without them the positions do.
    compression: how gradients travel; `Compression.fp16` halves them.
    backward_passes_per_step: backward passes whose gradients are added up before they are reduced.
        More of them than that before step() is an AssertionError.
    op: Average, Sum or another. Adasum makes the step on each rank and combines the steps.
    gradient_predivide_factor: divides before the sum and multiplies after it. Only with Average.
    groups: a number of groups, or lists of parameters, that are reduced at once: all or none.
        num_groups is its older name.
    sparse_as_dense: reduce sparse gradients as dense ones.
    process_set: the ranks that take part. Others make their own steps.

    Raises ValueError for contradicting arguments. Collective where there are groups.
    """
    gradient_groups.check_factor(gradient_predivide_factor, op)
    groups = gradient_groups.check_groups(num_groups, groups)
    if groups is not None and not isinstance(groups, int):
        _check_tensors(groups)
    if backward_passes_per_step <= 0:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step}: must be 1 or more.")
    names = name_parameters(optimizer, named_parameters)
    if op == Op.ADASUM and world.size() > 1:
        if process_set != global_process_set:
            raise NotImplementedError("op=Adasum works with the global process set only.")
        adasum = wrap(AdasumReducing, optimizer)
        adasum.begin_reducing(optimizer, names, compression, backward_passes_per_step)
        return adasum
    how = Reduction(
        process_set,
        Op(op),
        gradient_predivide_factor,
        None if compression is Compression.none else compression,
        sparse_as_dense,
        backward_passes_per_step,
    )
    reducing = wrap(Reducing, optimizer)
    reducing.begin_reducing(optimizer, names, how, groups)
    return reducing


class AdasumReducing(torch.optim.Optimizer):
    """The methods that `wrap` puts into a subclass of the user's class.

    State such as momentum stays each rank's own.
    """

    _user_class: ClassVar[type[torch.optim.Optimizer]]

    def begin_reducing(
        self,
        wrapped: torch.optim.Optimizer,
        names: dict[Tensor, str],
        compression: Any,
        passes: int,
    ) -> None:
        """Take the place of a constructor."""
        self._wrapped = wrapped
        self._parameter_names = names
        self._compression = compression
        self._agreement = agreement.Agreement()
        self.backward_passes_per_step = passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number, on which nothing depends: the step is what is combined."""
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Do nothing: gradients stay each rank's own."""

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """GradScaler.step() asks: AssertionError, since a rank that overflows makes no step."""
        raise AssertionError(
            "GradScaler does not work with op=Adasum: a rank whose gradients overflow leaves out "
            "its step, which the other ranks wait for. Use torch.autocast with torch.bfloat16, "
            "which needs no GradScaler, or op=hvd.Average."
        )

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Raise AssertionError: without its reduction a step would be this rank's alone."""
        raise AssertionError("skip_synchronize() has no meaning with op=Adasum.")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make the step of the user's class, then replace it by the Adasum of all ranks' steps.

        Raises HorovodInternalError; the parameters then are as they were before.
        """
        trained = [
            (parameter, self._parameter_names.get(parameter, place))
            for parameter, place in places(self)
            if parameter.requires_grad
        ]
        if trained:
            self._agreement.check(
                lambda: {name: parameter for parameter, name in trained},
                self.param_groups,
                global_process_set,
            )
        starts = [parameter.clone() for parameter, _ in trained]
        self._wrapped._opt_called = True  # type: ignore[attr-defined]
        step = self._user_class.step
        loss = step(self) if closure is None else step(self, closure)
        try:
            steps = self._combined(trained, starts)
        except BaseException:
            for (parameter, _), start in zip(trained, starts, strict=True):
                parameter.copy_(start)
            raise
        for (parameter, _), start, change in zip(trained, starts, steps, strict=True):
            torch.add(start, change, out=parameter.detach())
        return loss

    def _combined(self, trained: list[tuple[Tensor, str]], starts: list[Tensor]) -> list[Tensor]:
        """Return what the steps of all ranks make together. In the memory of the parameters."""
        packed = [
            self._compression.compress(parameter.detach().sub_(start))
            for (parameter, _), start in zip(trained, starts, strict=True)
        ]
        handles = [
            ops.allreduce_async_(tensor, name=name, op=Op.ADASUM)
            for (tensor, _), (_, name) in zip(packed, trained, strict=True)
        ]
        found, failed = [], None
        for handle, (_, context) in zip(handles, packed, strict=True):
            try:
                found.append(self._compression.decompress(ops.synchronize(handle), context))
            except HorovodInternalError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return found


def wrap(template: type[Template], optimizer: torch.optim.Optimizer) -> Template:
    """Make an optimizer whose class is a subclass of `optimizer`'s with the methods of `template`.

    It has the name of the user's class and its direct base is that class, as scripts expect of
    Horovod's. Parameter groups, state and hooks are the same objects as those of `optimizer`,
    so what was done to it before (a scheduler, a restored state) is not lost. `template` finds
    the user's class in `self._user_class`.
    """
    user = type(optimizer)
    if hasattr(user, "_user_class"):
        raise ValueError(f"This {user.__name__} is a DistributedOptimizer already.")
    methods = {name: each for name, each in vars(template).items() if name not in _NOT_TAKEN}
    methods |= {"__module__": _MODULE, "__qualname__": user.__qualname__, "__doc__": user.__doc__}
    methods["_user_class"] = user
    made: Any = new_class(user.__name__, (user,), exec_body=lambda body: body.update(methods))
    # PyTorch puts a wrapper around `step` that calls the optimizer's hooks. The user's has it.
    made.step.hooked = True
    found: Template = made.__new__(made)
    attributes = vars(optimizer).items()
    vars(found).update({k: v for k, v in attributes if k not in _INSTANCE_OF_ITS_OWN})
    return found


def name_parameters(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None
) -> dict[Tensor, str]:
    """The name of each parameter, which must be the same on all ranks.

    Raises ValueError for names that are not pairs, are not unique, or do not cover all parameters.
    """
    if named_parameters is None:
        return dict(places(optimizer))
    named = list(named_parameters)
    if any(not isinstance(each, tuple) for each in named):
        raise ValueError(
            "named_parameters: needs pairs of a name and a parameter, "
            "such as model.named_parameters() gives."
        )
    twice = [name for name, often in Counter(name for name, _ in named).items() if often > 1]
    if twice:
        raise ValueError(f"named_parameters: these names occur twice: {', '.join(twice)}.")
    names = {parameter: name for name, parameter in sorted(named, key=lambda each: each[0])}
    without = [place for parameter, place in places(optimizer) if parameter not in names]
    if without:
        raise ValueError(
            f"named_parameters: {len(without)} parameters of the optimizer have no name in it: "
            f"{', '.join(place.removeprefix('allreduce.noname.') for place in without)} "
            "(parameter group.position)."
        )
    return names


def places(optimizer: torch.optim.Optimizer) -> Iterable[tuple[Tensor, str]]:
    """Every parameter, and the name that it has where it was given none."""
    for i, group in enumerate(optimizer.param_groups):
        for j, parameter in enumerate(group["params"]):
            yield parameter, f"allreduce.noname.{i}.{j}"
