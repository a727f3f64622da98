package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"softiser/internal/usage"
)

// The background process tells its parent how attaching went through this
// descriptor, named by an environment variable.
const (
	readyEnv = "ISER_ATTACH_READY_FD"
	readyFD  = 3
)

// ready is what the child reports: a record or an error.
type ready struct {
	Record *Record `json:"record,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// background starts this program again with the same arguments, detached from
// the terminal, and waits until it has attached. Its messages go to log (or
// nowhere). When ctx ends before that, so does the other process.
func background(ctx context.Context, log string) (*Record, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("--daemon: %w", err)
	}
	if log == "" {
		log = os.DevNull
	}
	out, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--log: %w", err)
	}
	defer out.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("--daemon: %w", err)
	}
	defer r.Close()
	cmd := exec.Command(exe, os.Args[1:]...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", readyEnv, readyFD))
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP) // before there is a process that it would leave behind
	defer stop()
	usage.Insist(ctx, stop)
	err = cmd.Start()
	w.Close()
	if err != nil {
		return nil, fmt.Errorf("--daemon: %w", err)
	}
	goOn := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) }) // it has no terminal that would
	b, err := io.ReadAll(r)
	if !goOn() {
		_ = cmd.Wait() // it ends as it would in the foreground
		return nil, fmt.Errorf("--daemon: interrupted: %w", ctx.Err())
	}
	if err != nil {
		return nil, fmt.Errorf("--daemon: %w", err)
	}
	var msg ready
	if json.Unmarshal(b, &msg) != nil {
		return nil, errors.Join(errors.New("--daemon: the background process ended before it had attached (see --log)"), cmd.Wait())
	}
	if msg.Error != "" {
		err := errors.New(msg.Error)
		var ended *exec.ExitError
		if errors.As(cmd.Wait(), &ended) && ended.ExitCode() > 0 {
			return nil, &usage.Exit{Code: ended.ExitCode(), Err: err}
		}
		return nil, err
	}
	return msg.Record, cmd.Process.Release()
}

// inBackground returns the pipe to the parent when this is the background
// process.
func inBackground() *os.File {
	if os.Getenv(readyEnv) == "" {
		return nil
	}
	os.Unsetenv(readyEnv)
	syscall.CloseOnExec(readyFD)
	return os.NewFile(readyFD, "ready")
}

// report tells the parent, if there is one, and lets it go.
func report(pipe *os.File, rec *Record, err error) {
	if pipe == nil {
		return
	}
	msg := ready{Record: rec}
	if err != nil {
		msg.Error = err.Error()
	}
	b, _ := json.Marshal(msg)
	pipe.Write(b)
	pipe.Close()
}
