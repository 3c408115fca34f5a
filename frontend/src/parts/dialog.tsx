/* A question that has to be answered first, by the browser's own dialog. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

export function Dialog({
  title,
  close,
  children,
}: {
  title: string;
  close: () => void;
  children: ComponentChildren;
}) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = element.current;
    if (dialog && !dialog.open) dialog.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog
      ref={element}
      aria-labelledby="dialog-title"
      onCancel={(event) => {
        event.preventDefault();
        close();
      }}
      onClick={(event) => {
        if (event.target === element.current) close();
      }}
    >
      <div class="dialog-body">
        <h2 id="dialog-title">{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

export function Confirm({
  title,
  children,
  act,
  label,
  close,
}: {
  title: string;
  children?: ComponentChildren;
  act: () => void;
  label: string;
  close: () => void;
}) {
  return (
    <Dialog title={title} close={close}>
      {children}
      <div class="actions">
        <button type="button" onClick={close}>
          Cancel
        </button>
        <button
          type="button"
          class="danger"
          onClick={() => {
            close();
            act();
          }}
        >
          {label}
        </button>
      </div>
    </Dialog>
  );
}
