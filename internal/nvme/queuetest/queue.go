package queuetest

import (
	"testing"
	"time"

	"softiser/internal/nvme"
)

// Queue is what lies above the host's side: commands, each in a slot of its own.
type Queue struct {
	upper
	H Host
	// Again, when set before Start, is asked from Completed whether the command is to be
	// submitted once more.
	Again func(*nvme.HostCommand) bool

	cmds      []*nvme.HostCommand
	completed chan *nvme.HostCommand
	ended     chan error
}

// NewQueue makes a queue of a number of entries that is not started yet.
func NewQueue(t testing.TB, h Host, entries int) *Queue {
	q := &Queue{H: h, ended: make(chan error, 1), completed: make(chan *nvme.HostCommand, entries)}
	q.upper.t, q.upper.name = t, "host"
	for i := range entries {
		q.cmds = append(q.cmds, &nvme.HostCommand{Slot: i})
	}
	return q
}

// Completed implements nvme.HostUpper; so do the following.
func (q *Queue) Completed(c *nvme.HostCommand) {
	q.upcall("Completed", "Push")
	if q.Again != nil && q.Again(c) {
		q.H.Submit(c)
		return
	}
	q.completed <- c
}

func (q *Queue) BatchEnd() { q.upcall("BatchEnd", "Push") }

func (q *Queue) Ended(err error) {
	q.upcall("Ended")
	q.over.Store(true)
	q.ended <- err
}

// Command returns command i as it was submitted last.
func (q *Queue) Command(i int) *nvme.HostCommand { return q.cmds[i] }

// Set makes command i of the queue one that reads or writes data at at.
func (q *Queue) Set(i int, op nvme.Opcode, at int, data ...[]byte) *nvme.HostCommand {
	c := q.cmds[i]
	c.SQE.Init(op, 1)
	c.SQE.ReadWrite().SetRange(uint64(at), 1)
	c.Data = data
	return c
}

// Wait returns the next command that is completed.
func (q *Queue) Wait() *nvme.HostCommand {
	q.t.Helper()
	select {
	case c := <-q.completed:
		return c
	case err := <-q.ended:
		q.ended <- err // for End
		select {
		case c := <-q.completed: // before
			return c
		default:
			q.t.Fatalf("the connection ended: %v", err)
		}
	case <-time.After(deadline):
		q.t.Fatal("no completion")
	}
	return nil
}

// Done returns how many completed commands nobody has waited for.
func (q *Queue) Done() int { return len(q.completed) }

// Do runs one command.
func (q *Queue) Do(c *nvme.HostCommand) (nvme.Status, error) {
	q.t.Helper()
	q.H.Submit(c)
	q.H.Push()
	if got := q.Wait(); got != c {
		q.t.Fatal("another command was completed")
	}
	return c.CQE.Status(), c.Err
}

// End waits until the connection has ended, and returns why.
func (q *Queue) End() error {
	q.t.Helper()
	err := recv(q.t, "the end of the host's side", q.ended)
	recv(q.t, "the host's last up-call", q.H.Ended())
	return err
}

// Close ends the connection in order, and checks that d, if it is not nil, ends well too.
func (q *Queue) Close(d *Disk) {
	q.t.Helper()
	q.H.Terminate(nil)
	if err := q.End(); err != nil {
		q.t.Errorf("the host's side ended with %v", err)
	}
	if d == nil {
		return
	}
	if err := d.Over(); err != nil {
		q.t.Errorf("the controller's side ended with %v", err)
	}
}
