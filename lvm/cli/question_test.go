package cli

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"softiser/internal/terminal/ptytest"
	"softiser/internal/usage"
	"softiser/lvm"
)

// TestQuestion: what destroys data is asked about on a terminal, before anything
// has changed, and each question for what it says.
func TestQuestion(t *testing.T) {
	s := newShell(t)
	s.group()
	var asked []string
	answer := func(yes bool) func(context.Context, string) (bool, error) {
		return func(_ context.Context, q string) (bool, error) { asked = append(asked, q); return yes, nil }
	}
	left := func() string {
		return strings.Join(strings.Fields(s.run("lvs", "--noheadings", "-o", "lv_name,lv_size")), " ")
	}
	s.run("lvcreate", "-L20m", "-n", "a", "vg0")
	s.run("lvcreate", "-L20m", "-n", "b", "vg0")
	s.run("lvcreate", "-L8m", "-s", "-n", "snap", "vg0/b")
	const before = "a 20.00m b 20.00m snap 8.00m"

	s.env.Ask = answer(false)
	for _, line := range []string{"lvreduce -L8m vg0/a", "lvresize -L8m vg0/a", "lvremove vg0/a vg0/b", "lvremove vg0", "vgremove vg0"} {
		asked = nil
		s.fails("not agreed to", strings.Fields(line)...)
		if len(asked) != 1 || left() != before {
			t.Errorf("%s: asked %q, left %q", line, asked, left())
		}
	}
	asked = nil
	s.run("lvextend", "-L24m", "vg0/a") // no question
	s.env.Ask = answer(true)
	s.run("lvreduce", "-L20m", "vg0/a")
	if len(asked) != 1 || !strings.Contains(asked[0], "vg0/a") || left() != before {
		t.Errorf("asked %q, left %q", asked, left())
	}
	s.run("lvremove", "vg0/b")
	if len(asked) != 2 || !strings.Contains(asked[1], "also removes snap") || left() != "a 20.00m" {
		t.Errorf("asked %q, left %q", asked, left())
	}

	t.Run("remote", func(t *testing.T) { questionOfTarget(t, s, answer) })
}

// questionOfTarget: a command that runs in a target is asked about where the user is.
func questionOfTarget(t *testing.T, s *shell, answer func(bool) func(context.Context, string) (bool, error)) {
	m := &lvm.Manager{Config: s.env.Config}
	defer m.Close()
	dev, err := m.Open(lvm.Spec{VG: "vg0", LV: "a", Devices: s.disks})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	calls := 0
	env := Env{Remote: func(ctx context.Context, args []string, in io.Reader, out, stderr io.Writer) (bool, error) {
		calls++
		if calls == 1 { // by the time of the answer there is another snapshot
			defer s.run("lvcreate", "-L8m", "-s", "-n", "other", "vg0/c")
		}
		return true, Run(ctx, Env{Manager: m, Config: s.env.Config}, args, in, out, stderr)
	}}
	s.env.Manager = m
	s.env.Ask = nil
	s.run("lvcreate", "-L20m", "-n", "c", "vg0")
	s.run("lvcreate", "-L8m", "-s", "-n", "snap", "vg0/c")
	run := func() error {
		return Run(context.Background(), env, []string{"lvremove", "vg0/c"}, nil, io.Discard, io.Discard)
	}
	var asked []string
	env.Ask = func(_ context.Context, q string) (bool, error) {
		asked = append(asked, q)
		return len(asked) == 1, nil
	}
	if err := run(); !errors.Is(err, errNo) || len(asked) != 2 || asked[0] == asked[1] || !strings.Contains(asked[1], "other") {
		t.Fatalf("%v, asked %q", err, asked)
	}
	env.Ask = answer(true)
	if err := run(); err != nil {
		t.Fatal(err)
	}
	if v := m.Group("vg0").Metadata(); v.LV("c") != nil || v.LV("a") == nil {
		t.Errorf("volumes %v", v.LVs)
	}
}

// TestPrompt: only lvm2's answers are answers, and no more than they is read.
func TestPrompt(t *testing.T) {
	for in, want := range map[string]bool{"y\n": true, "YES\nrest": true, "what\n\ny\n": true, "n\n": false, "No\n": false, "": false, "maybe": false} {
		r := strings.NewReader(in)
		var out strings.Builder
		if yes, err := Prompt(r, &out)(context.Background(), "really?"); err != nil || yes != want || !strings.HasPrefix(out.String(), "really? [y/n]: ") {
			t.Errorf("%q: %v, %v, %q", in, yes, err, out.String())
		}
		if rest, _ := io.ReadAll(r); strings.HasSuffix(in, "rest") && string(rest) != "rest" {
			t.Errorf("%q: left %q", in, rest)
		}
	}
	r, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Prompt(r, io.Discard)(ctx, "really?"); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestExportToTerminal: data comes to a terminal only where it is asked for there.
func TestExportToTerminal(t *testing.T) {
	tty, person, err := ptytest.Open(t)
	if err != nil {
		t.Skip(err)
	}
	s := newShell(t)
	s.group()
	s.run("lvcreate", "-L8m", "-n", "a", "vg0")
	export := func(args ...string) error {
		args = append([]string{"export", "vg0/a", "--devices", strings.Join(s.disks, ",")}, args...)
		return Run(context.Background(), s.env, args, strings.NewReader(""), &usage.Output{W: tty}, io.Discard)
	}
	if err := export(); !usage.Is(err) || !strings.Contains(err.Error(), "--output") {
		t.Errorf("to a terminal: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- export("--output", "-") }()
	ptytest.Expect(t, person, "vg0/a")
	if err := <-done; err != nil {
		t.Errorf("to a terminal that is asked for: %v", err)
	}
}
