"""Tools: methods marked `@tool`, tool plugins by name, and `ToolEnv`, the environment base class that runs them.

A parse failure, an unknown tool, bad arguments or a raising tool comes back to the model as a tool message and the
episode goes on. Parallel calls are all executed, in order. Infrastructure failures are not tool errors: they pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, Field, ValidationError, validate_call

from plugym.env import AgentEnv, EnvConfig, StepResult
from plugym.errors import BadInput, PlugymError
from plugym.message import Action, Message, ToolCall, ToolSpec

F = TypeVar("F", bound=Callable[..., Any])


def tool(function: F) -> F:
    """Mark a method of a `ToolEnv` as callable by the model; the schema is read from hints and docstring."""
    function.__plugym_tool__ = True  # type: ignore[attr-defined]
    return function


class ToolConfig(BaseModel, extra="forbid"):
    """Settings of a tool that has none."""


class Tool(ABC):
    """A tool plugin (entry-point group `plugym.tools`), constructed as `Tool(config)`, one instance per environment."""

    Config: ClassVar[type[BaseModel]] = ToolConfig

    def __init__(self, config: BaseModel | None = None) -> None:
        self.config = config if config is not None else self.Config()

    @property
    @abstractmethod
    def spec(self) -> ToolSpec:
        """Name, description and argument schema."""

    @abstractmethod
    def call(self, **arguments: Any) -> str:
        """Run once. Plain exceptions are told to the model."""

    def reset(self) -> None:
        """A new episode begins."""

    def close(self) -> None:
        """Free what the tool holds. Idempotent."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """One executed (or refused) call: the message for the model, whether it ran, whether it succeeded."""

    message: Message
    executed: bool
    ok: bool


class ToolEnvConfig(EnvConfig):
    """Settings every tool environment has."""

    tools: list[str] = Field(default_factory=list, description="tool plugins by name, such as calculator")
    tool_settings: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="settings of a tool plugin by its name"
    )


class ToolEnv(AgentEnv):
    """An environment whose policy calls tools. Subclasses implement `tasks`, `reset` and `answer`.

    >>> from plugym.task import Task, Taskset
    >>> class Shop(ToolEnv):
    ...     @tool
    ...     def price(self, item: str) -> float:
    ...         '''Price of an item in euros.'''
    ...         return {"tea": 2.5}[item]
    ...
    ...     def tasks(self, split):
    ...         return Taskset([Task("shop/tea", instruction="What does tea cost?", answer="2.5")])
    ...
    ...     def reset(self, *, seed=None, options=None):
    ...         super().reset(seed=seed, options=options)
    ...         self.task = self.pick_task(options)
    ...         return (Message("user", self.task.instruction),), {}
    ...
    ...     def answer(self, action):
    ...         return (), float(action.text == self.task.answer), True, False, {}
    >>> env = Shop()
    >>> _ = env.reset(seed=0)
    >>> obs, *_ = env.step(Action(tool_calls=(ToolCall("c1", "price", {"item": "tea"}),)))
    >>> obs[0].text
    '2.5'
    """

    Config: ClassVar[type[BaseModel]] = ToolEnvConfig

    def __init__(self, config: BaseModel | None = None) -> None:
        settings = config if config is not None else self.Config()
        self._plugins = _load_tools(settings)
        methods = self._tool_methods()
        self._specs = [spec for spec, _ in methods.values()]
        self._specs += [plugin.spec for plugin in self._plugins.values()]
        twice = sorted(methods.keys() & self._plugins.keys())
        if twice:
            raise BadInput(f"the environment has a tool {twice[0]!r} of its own: leave the plugin of that name out")
        # Arguments are checked against the type hints of what runs, a method's or a plugin's `call`.
        self._calls = {name: call for name, (_, call) in methods.items()}
        self._calls |= {name: validate_call(plugin.call) for name, plugin in self._plugins.items()}
        super().__init__(settings)

    def _tool_methods(self) -> dict[str, tuple[ToolSpec, Callable[..., Any]]]:
        """Schema and checked call of each method marked `@tool`."""
        methods: dict[str, tuple[ToolSpec, Callable[..., Any]]] = {}
        for name in dir(type(self)):
            if not hasattr(getattr(type(self), name), "__plugym_tool__"):
                continue
            method = getattr(self, name)
            if getattr(method, "__self__", None) is self:
                spec, call = _checked(method.__func__, name)
                methods[name] = spec, partial(call, self)
            else:  # a static or class method
                methods[name] = _checked(method, name)
        return methods

    def tools(self) -> Sequence[ToolSpec]:
        return self._specs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Subclasses call this first: it seeds the episode and resets the tools."""
        for plugin in self._plugins.values():
            plugin.reset()
        return super().reset(seed=seed, options=options)

    def step(self, action: Action) -> StepResult:
        """Run the calls of this turn; a turn without calls is the answer."""
        if not action.tool_calls:
            return self.answer(action)
        results = [self.execute(call) for call in action.tool_calls]
        info = {
            "executed_calls": sum(result.executed for result in results),
            "successful_calls": sum(result.ok for result in results),
        }
        return tuple(result.message for result in results), 0.0, False, False, info

    @abstractmethod
    def answer(self, action: Action) -> StepResult:
        """The policy answered without calling a tool."""

    def execute(self, call: ToolCall) -> ToolResult:
        """Run one call; every failure the model can learn from becomes its message."""
        if call.error is not None:
            return _refused(call, f"Error: the tool call could not be parsed: {call.error}")
        if call.name not in self._calls:
            known = ", ".join(spec.name for spec in self._specs) or "none"
            return _refused(call, f"Error: there is no tool {call.name!r}. Tools: {known}.")
        try:
            text = str(self._calls[call.name](**call.arguments))
        except PlugymError:
            raise
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            return _refused(call, f"Error: bad arguments for {call.name}: {problems}")
        except Exception as error:
            return ToolResult(_reply(call, f"Error: {type(error).__name__}: {error}"), executed=True, ok=False)
        return ToolResult(_reply(call, text), executed=True, ok=True)

    def close(self) -> None:
        for plugin in self._plugins.values():
            plugin.close()
        super().close()


@lru_cache(maxsize=256)
def _checked(function: Callable[..., Any], name: str) -> tuple[ToolSpec, Callable[..., Any]]:
    """The schema of a function and the function with its arguments checked. Made once for all instances of a class:
    it takes milliseconds, and there is an instance for each episode that is played at the same time."""
    return ToolSpec.from_function(function, name), validate_call(function)


def _load_tools(settings: BaseModel) -> dict[str, Tool]:
    """Tool plugins named in the settings, by the name the model calls them."""
    from plugym.registry import registry

    plugins: dict[str, Tool] = {}
    names: list[str] = getattr(settings, "tools", [])
    options: dict[str, dict[str, Any]] = getattr(settings, "tool_settings", {})
    for name in names:
        plugin: Tool = registry().create("tools", name, options.get(name, {}))
        if plugin.spec.name in plugins:
            raise BadInput(f"two tool plugins call themselves {plugin.spec.name!r}: leave {name!r} out")
        plugins[plugin.spec.name] = plugin
    return plugins


def _reply(call: ToolCall, text: str) -> Message:
    return Message("tool", text, tool_call_id=call.id)


def _refused(call: ToolCall, text: str) -> ToolResult:
    return ToolResult(_reply(call, text), executed=False, ok=False)
