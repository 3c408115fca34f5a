/* A component that is drawn again only when one of its properties is another one. */
import { Component, type ComponentType, type FunctionComponent, h } from "preact";

export function memo<P extends object>(render: FunctionComponent<P>): ComponentType<P> {
  return class Memo extends Component<P> {
    override shouldComponentUpdate(next: P): boolean {
      const now = this.props as Record<string, unknown>;
      const then = next as Record<string, unknown>;
      return Object.keys(then).some((name) => name !== "children" && then[name] !== now[name]);
    }

    override render() {
      return h(render as FunctionComponent<object>, this.props as object);
    }
  };
}
