package main

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// event is something that happens to the node that serves.
type event struct {
	name string
	// do makes it happen; it returns when it has.
	do func(ctx context.Context, c *cluster, owner *node) error
	// moves says that another node serves afterwards.
	moves bool
	// after puts right what the cluster does not put right itself.
	after func(ctx context.Context, c *cluster, owner *node) error
	// budget is how long the longest write may take on a quiet machine, given how long the
	// cluster took.
	budget func(cluster time.Duration) time.Duration
	only   func(configuration) bool // nil: all
}

func fixed(d time.Duration) func(time.Duration) time.Duration {
	return func(time.Duration) time.Duration { return d }
}

func aSecondMore(cluster time.Duration) time.Duration { return cluster + time.Second }

var events = []event{
	{name: "kill", do: killTarget, budget: fixed(1500 * time.Millisecond)},
	{name: "move", do: move, moves: true, after: unmove, budget: fixed(2500 * time.Millisecond)},
	{name: "power", do: powerCut, moves: true, budget: aSecondMore},
	{name: "cable", do: pullCable, moves: true, after: plugCable, budget: aSecondMore},
}

// killTarget ends the process as kill -9 does.
func killTarget(_ context.Context, c *cluster, owner *node) error {
	pid, err := c.targetPID(owner)
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// move is what an administrator does before maintenance.
func move(ctx context.Context, c *cluster, owner *node) error {
	to := c.others(owner)[0]
	args := []string{"crm_resource", "--move", "--resource", "storage", "--node", to.name}
	if c.promotable {
		args = []string{"crm_resource", "--move", "--resource", "target-clone", "--promoted", "--node", to.name}
	}
	_, err := owner.on(ctx, args...)
	return err
}

// unmove takes the wish back that a move has left.
func unmove(ctx context.Context, c *cluster, owner *node) error {
	of := "storage"
	if c.promotable {
		of = "target-clone"
	}
	_, err := owner.on(ctx, "crm_resource", "--clear", "--resource", of)
	return err
}

func powerCut(_ context.Context, c *cluster, owner *node) error {
	c.off(owner)
	return nil
}

func pullCable(_ context.Context, c *cluster, owner *node) error {
	c.cable(owner, false)
	return nil
}

// plugCable puts it back; a node that was fenced meanwhile has one already.
func plugCable(_ context.Context, c *cluster, owner *node) error {
	c.cable(owner, true)
	return nil
}

// outcome is what was seen of an event.
type outcome struct {
	configuration, event string
	who                  string
	cluster              time.Duration            // from the event to the start of the address, by the cluster's log
	pauses               map[string]time.Duration // longest write, by wire
	budget               time.Duration
	from, to             string
	note                 string
}

func (o *outcome) longest() (d time.Duration) {
	for _, p := range o.pauses {
		d = max(d, p)
	}
	return d
}

func (o *outcome) String() string {
	s := ""
	for _, w := range wires {
		s += fmt.Sprintf(" %s %.2f", w, o.pauses[w].Seconds())
	}
	verdict := "met"
	if o.longest() > o.budget {
		verdict = "missed"
	}
	return fmt.Sprintf("%-16s %s->%s cluster %.2f s; longest write (s):%s; budget %.2f %s; lost 0", o.configuration+"/"+o.event, o.from, o.to, o.cluster.Seconds(), s, o.budget.Seconds(), verdict)
}

// try makes an event happen under load, and holds the data to what was promised.
func (c *cluster) try(ctx context.Context, e event, j *journal, round int) (_ *outcome, err error) {
	owner, err := c.owner(ctx)
	if err != nil {
		return nil, err
	}
	var loads []*load
	defer func() {
		for _, l := range loads {
			l.kill()
		}
	}()
	for i := range wires {
		l := newLoad(c, i)
		if err := l.start(); err != nil {
			return nil, err
		}
		loads = append(loads, l)
	}
	if err := j.start(ctx, wires[round%len(wires)]); err != nil {
		return nil, err
	}
	running := true
	defer func() {
		if running {
			j.volume.Close()
			j.close(ctx)
		}
	}()
	for _, l := range loads {
		if err := l.writes(ctx); err != nil {
			return nil, err
		}
	}
	o := &outcome{configuration: c.name, event: e.name, who: c.who, from: owner.name, pauses: map[string]time.Duration{}}
	at := time.Now()
	if err := e.do(ctx, c, owner); err != nil {
		return nil, err
	}
	served, to, err := c.log.servedAgain(ctx, at, func(name string) bool { return name != owner.name || !e.moves })
	if err != nil {
		return nil, err
	}
	o.cluster, o.to, o.budget = served.Sub(at), to, e.budget(served.Sub(at))
	for _, l := range loads {
		if err := l.writes(ctx); err != nil {
			return nil, err
		}
	}
	for _, l := range loads {
		if o.pauses[l.wire], err = l.stop(ctx); err != nil {
			return nil, err
		}
	}
	running = false
	if err := j.close(ctx); err != nil {
		return nil, err
	}
	if e.after != nil {
		if err := e.after(ctx, c, owner); err != nil {
			return nil, err
		}
	}
	return o, c.verify(ctx, loads, j, round)
}

// verify reads all that was promised.
func (c *cluster) verify(ctx context.Context, loads []*load, j *journal, round int) error {
	for _, l := range loads {
		if err := l.verify(ctx); err != nil {
			return err
		}
	}
	if err := j.verify(ctx, wires[(round+1)%len(wires)]); err != nil {
		return err
	}
	return fencedHost{}.check(ctx)
}
