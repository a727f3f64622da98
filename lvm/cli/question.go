package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Question is the error of a command that needs an answer and can ask nobody:
// it has changed nothing yet. A target returns it; the user's side asks, and
// gives the command again with what was agreed to.
type Question struct{ Text string }

func (q *Question) Error() string { return q.Text + " (say --yes)" }

// errNo is the outcome of a question that was not answered with yes.
var errNo = errors.New("not agreed to: nothing is changed")

// agreedFlag carries the questions that were answered with yes to a target.
// What was agreed to is the text: a question that is another one by then, since
// something else would be lost, is asked again.
const agreedFlag = "agreed"

// ask returns nil if the user agrees. Commands ask before they change anything.
func (a *app) ask(ctx context.Context, format string, args ...any) error {
	q := &Question{fmt.Sprintf(format, args...)}
	switch {
	case a.yes || a.force > 0 || slices.Contains(a.agreed, q.Text):
		return nil
	case a.env.Ask == nil:
		return q
	}
	return a.pose(ctx, q)
}

// pose puts a question to the user.
func (a *app) pose(ctx context.Context, q *Question) error {
	yes, err := a.env.Ask(ctx, q.Text)
	if err == nil && !yes {
		err = errNo
	}
	return err
}

// Prompt returns a function that asks on a terminal, for [Env]. As with lvm2 only
// y, yes, n and no are answers, and the end of the input is no.
func Prompt(in io.Reader, out io.Writer) func(context.Context, string) (bool, error) {
	return func(ctx context.Context, question string) (bool, error) {
		for {
			fmt.Fprintf(out, "%s [y/n]: ", question)
			line, err := readLine(ctx, in)
			switch strings.ToLower(strings.TrimSpace(line)) {
			case "y", "yes":
				return true, nil
			case "n", "no":
				return false, nil
			}
			if errors.Is(err, io.EOF) {
				fmt.Fprintln(out, "[n]")
				return false, nil
			}
			if err != nil {
				return false, err
			}
		}
	}
}

// readLine reads no more than a line: what follows may be the input of the command.
// A reader that does not end is left behind when ctx is done, as the process ends then.
func readLine(ctx context.Context, in io.Reader) (string, error) {
	type result struct {
		line string
		err  error
	}
	done := make(chan result, 1)
	go func() {
		var line []byte
		for {
			var b [1]byte
			n, err := in.Read(b[:])
			line = append(line, b[:n]...)
			if err != nil || n > 0 && b[0] == '\n' {
				done <- result{string(line), err}
				return
			}
		}
	}()
	select {
	case r := <-done:
		return r.line, r.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
