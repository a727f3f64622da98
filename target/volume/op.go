package volume

import (
	"fmt"
	"sync/atomic"
	"time"

	"softiser/internal/fsm"
	"softiser/internal/list"
)

// Op is what a volume knows of a command in execution: its client, its order, its blocks, its
// state, and whether it has been aborted. The request of a front end embeds one in each of
// its preallocated slots, so that nothing is allocated per command:
//
//	Init --> Cover --> Tasks.Admit --> (Throttle, ToWorker, Exclusively, …) --> Tasks.Leave --> Release
//
// Between Admit and Leave it is in the task set of its volume.
type Op struct {
	// Set by the front end between Init and Admit.
	Client *Client // the sender
	Order  Order
	Bytes  int64 // bytes that count against the rate limit

	req     Request
	set     *Tasks // nil before Admit
	hold    hold   // the blocks it touches, while it is in the task set
	aborted atomic.Uint32
	traced  *traced // nil: nobody follows it
	write   write   // that a worker makes for it
	read    read    // that it waits for in the worker queue
	shared  shared  // of the staging memory

	// Guarded by set.mu, as soon as it is in the task set:
	state   State
	node    list.Node[Op] // in the task set
	qnext   *Op           // dormant, worker or throttle queue; in that of a shareRing guarded by shares.mu
	inTurn  bool          // the worker queue has it as one of pool.turns
	syncs   bool          // its queued step makes data durable, see ToSyncer
	commits bool          // its queued step gives staging memory back, see ToCommitter
	waits   []*Wait
	timer   *time.Timer   // bounds a Blocked op
	copying *Copy         // what the command does
	ended   chan struct{} // closed when it is aborted; nil: nobody asks
	awaits  *Outcome      // of the rewrite that a Blocked op waits for
	turn    chan struct{} // the op stands for a piece of a copy, in no task set; closed when that may go
}

// Request is the command of a front end that an Op is part of.
type Request interface {
	// Step goes on with a command that has waited, or ends it. It is called without
	// locks, on a worker or on whichever goroutine ended the wait. Afterwards the slot
	// may belong to another command.
	Step(Cause)
	// Via returns the port that transmits what the command queues. It is called while the
	// command has not ended; the port may be used after that.
	Via() Port
	// Cancel ends the data phase of an aborted command. The port is one that Via has
	// returned. If the slot holds another command by now, Cancel leaves it alone. No locks
	// are held.
	Cancel(Port)
	// Describe fills in what is known of the command on its arrival. No locks are held.
	Describe(*TracedCommand)
}

// Port transmits what commands have queued.
type Port interface{ Push() }

// Cause tells a waiting request why it goes on.
type Cause uint8

// Causes.
const (
	Proceed Cause = iota // it is its turn
	Abort                // it has been aborted, and ends
	TimeOut              // its blocks were busy for too long; it ends, nothing is done
)

// Order is how a command is ordered among the others of its volume; see Tasks.
type Order uint8

// Orders.
const (
	Simple      Order = iota // behind older ordered commands and those that jump the queue
	Ordered                  // behind all older ones
	HeadOfQueue              // at once
)

// State is where an Op is.
//
//	       Admit                  start                  Leave        Release
//	Idle --------> Dormant ----------------> Queued        +--> Ended -------> Idle
//	   |                                      |  ^         |
//	   |   may start at once                  v  |storage  |
//	   +-----------------------------------> Running ------+
//	                                          |  ^
//	       rate limit, busy range, memory     v  |
//	                                 Throttled, Blocked, Staging
//
// Abort brings Dormant, Queued, Throttled, Blocked and Staging back to Running, from where they
// end at once; one that is Running (which may be waiting for its initiator's data)
// ends at its next step. What is refused before the task set goes from Idle to Ended.
type State uint8

// States.
const (
	Idle      State = iota
	Dormant         // in the task set, may not start yet (order, range)
	Queued          // waits for a worker
	Running         // on a receive goroutine, on a worker, or waiting for the initiator's data
	Throttled       // waits for the rate limit of its volume
	Blocked         // waits for its block range, or for a rewrite; see ranges.go
	Ended           // out of the task set
	Staging         // waits for its share of the staging memory
)

var stateNames = [...]string{"idle", "dormant", "queued", "running", "throttled", "blocked", "ended", "staging"}

// String returns the state's name.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// nextStates is the drawing as a table.
var nextStates = fsm.Of([][]State{
	Idle:      {Dormant, Running, Ended},
	Dormant:   {Running},
	Queued:    {Running},
	Running:   {Queued, Throttled, Blocked, Staging, Ended},
	Throttled: {Running, Queued},
	Blocked:   {Running, Queued},
	Ended:     {Idle},
	Staging:   {Running, Queued},
})

// to is the only writer of o.state. A transition that the table does not have is an internal
// error: the state stays, because the queue that holds the op relies on it, and Config.Fault
// is called. Preconditions: the lock of its task set is held, or it is in none.
func (o *Op) to(s State) {
	if nextStates.Has(o.state, s) {
		o.state = s
		if o.traced != nil {
			o.traced.pass(s)
		}
		return
	}
	o.illegal(s)
}

// illegal tells of a transition that has not been made.
func (o *Op) illegal(s State) {
	err := fsm.Illegal("volume", "an op", o.state, s)
	if o.set != nil && o.set.fault != nil {
		o.set.fault(err)
	}
}

// Init prepares the op for a new command of r, which stays the same for a slot.
func (o *Op) Init(r Request) {
	if o.req == nil {
		o.req = r
	}
	o.set = nil
	o.hold = hold{}
	o.write, o.read = write{}, read{}
	o.syncs, o.commits = false, false
	o.Bytes = 0
	o.ended = nil
	if o.Aborted() {
		o.aborted.Store(uint32(NotAborted))
	}
}

// Cover says which blocks the command touches, [lo, hi), and how. It comes before
// Admit.
func (o *Op) Cover(lo, hi uint64, kind Hold) { o.hold = hold{lo: lo, hi: hi, kind: kind} }

// Request returns the command that the op is part of.
func (o *Op) Request() Request { return o.req }

// InSet reports whether the op has been admitted; only the goroutine that has the
// command may ask.
func (o *Op) InSet() bool { return o.state != Idle }

// Refused ends an op that has never been admitted.
func (o *Op) Refused() { o.to(Ended) }

// Release makes the slot free for the next command. Preconditions: it has ended.
func (o *Op) Release() {
	if o.state != Idle {
		o.to(Idle)
	}
	if t := o.traced; t != nil {
		o.traced = nil
		t.finish()
	}
	o.Client = nil
}

// Aborted reports whether the command has been aborted and has not ended yet.
func (o *Op) Aborted() bool { return o.aborted.Load() != uint32(NotAborted) }

// stopTimer ends the bound of a wait.
func (o *Op) stopTimer() {
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
}
