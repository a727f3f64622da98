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
	// during goes on with it while the loads write to the node that serves now.
	during func(ctx context.Context, c *cluster, owner *node, o *outcome) error
	// after puts right what the cluster does not put right itself.
	after func(ctx context.Context, c *cluster, owner *node) error
	// budget is how long the longest write may take on a quiet machine, given how long the
	// cluster took.
	budget func(cluster time.Duration) time.Duration
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
	{name: "split", do: splitBrain, moves: true, after: plugCable, budget: aSecondMore},
	{name: "pause", do: pause, moves: true, during: wake, budget: aSecondMore},
	{name: "hang", do: hang, budget: aSecondMore},
}

// suits reports whether an event makes sense: a node that is fenced by the disk alone keeps its
// power, and the address.
func (e *event) suits(c configuration) bool {
	return !c.storageFence || e.name == "power" || e.name == "pause"
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

// splitBrain pulls the cable while the power switch does not answer: nobody can know whether
// the node is dead, and as long as that is so nothing may begin elsewhere.
func splitBrain(ctx context.Context, c *cluster, owner *node) error {
	const long = 5 * time.Second // the token is lost after one
	at := time.Now()
	c.breakSwitch(true)
	defer c.breakSwitch(false)
	c.cable(owner, false)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(long):
	}
	if got := c.log.since(at, started); len(got) > 0 {
		return fmt.Errorf("a second node has begun to serve, and the first one is not fenced: %s", got[0])
	}
	return nil
}

// pause stops everything on the node, as a hypervisor does with a guest.
func pause(_ context.Context, _ *cluster, owner *node) error { return owner.freeze(true) }

// wake has the node go on that another one has been taken for: if its power was cut there is
// nothing left of it. If not, its target has writes at hand that it thinks are due.
func wake(ctx context.Context, c *cluster, owner *node, o *outcome) error {
	if c.array == nil {
		return nil
	}
	// By then a good part of what its writes were for has been written anew by the other node.
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(6 * time.Second):
	}
	// Without its cable: it still has the address, and its first ARP request would take the
	// initiators away from the other node, which is not what is looked at here.
	c.cable(owner, false)
	if err := owner.freeze(false); err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Second); c.array.lateWrites(owner.name) == 0 && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(10 * time.Millisecond)
	}
	select { // the loads go on over the other node
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(2 * time.Second):
	}
	o.note = fmt.Sprintf("%d late writes refused", c.array.lateWrites(owner.name))
	c.off(owner) // as its watchdog does, when it finds that its key is gone
	return nil
}

// hang stops the process alone: the cluster sees that it does not answer.
func hang(_ context.Context, c *cluster, owner *node) error {
	pid, err := c.targetPID(owner)
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGSTOP)
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
	at                   time.Time
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
	return fmt.Sprintf("%-16s %s->%s cluster %.2f s; longest write (s):%s; budget %.2f %s; lost 0 %s", o.configuration+"/"+o.event, o.from, o.to, o.cluster.Seconds(), s, o.budget.Seconds(), verdict, o.note)
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
	o.at = at
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
	if e.during != nil {
		if err := e.during(ctx, c, owner, o); err != nil {
			return nil, err
		}
		for _, l := range loads {
			if err := l.writes(ctx); err != nil {
				return nil, err
			}
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
	if c.array != nil {
		if err := c.array.forget(); err != nil {
			return err
		}
	}
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
