package rows

import (
	"context"
	"fmt"

	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/result"
)

// Contenders that show what can be had at all: minimal programs in C. Each says in its source
// what it leaves out.
const (
	boundReuse     = result.BoundPrefix + "FPDUs, one buffer"
	boundWalk      = result.BoundPrefix + "FPDUs, walking 1 GiB"
	boundReuseSpin = boundReuse + ", spinning"
	boundWalkSpin  = boundWalk + ", spinning"
	boundWalkCRC   = result.BoundPrefix + "FPDUs, walking 1 GiB, CRC"

	boundStream   = result.BoundPrefix + "byte stream"
	boundFPDUs    = result.BoundPrefix + "FPDUs"
	boundFPDUsCRC = result.BoundPrefix + "FPDUs, CRC"
	boundPages    = result.BoundPrefix + "pages"
	boundPagesCRC = result.BoundPrefix + "pages, CRC"
	boundWait     = result.BoundPrefix + "waiting"
	boundSpin     = result.BoundPrefix + "spinning"

	boundAsked    = result.BoundPrefix + "requests"
	boundAskedCRC = result.BoundPrefix + "requests, CRC"
	boundEach     = result.BoundPrefix + "requests one by one"
	boundEachCRC  = result.BoundPrefix + "requests one by one, CRC"
	boundHop      = result.BoundPrefix + "one process more"
	boundKept     = result.BoundPrefix + "payload kept and summed"
	boundUnasked  = result.BoundPrefix + "payload kept and summed, not asked for"
	boundTwo      = result.BoundPrefix + "two sends"
	boundThree    = result.BoundPrefix + "three calls"
	boundWorker   = result.BoundPrefix + "worker"
	boundInline   = result.BoundPrefix + "inline"
	boundThreads  = result.BoundPrefix + "32 threads behind a connection"
	boundAhead    = result.BoundPrefix + "announced, behind a connection"
)

// millis as an argument of a program in C stands for the time of a measurement.
const millis = "MS"

// served is the memory that a serving half has, as its argument: the volume's, in MiB.
var served = []string{fmt.Sprint(peers.VolumeSize >> 20)}

// timed puts the time of a measurement in its place.
func timed(e *peers.Env, args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		if out[i] = a; a == millis {
			out[i] = e.Millis()
		}
	}
	return out
}

// inC is a program in C with a serving half, which the row starts once: how it asks, and what
// follows the port on its command line.
func inC(name, program string, serving []string, how string, args ...string) Contender {
	return Contender{
		Name: name, Needs: []string{"cc"}, Slow: true,
		Prepare: func(_ context.Context, st *Stage) error {
			_, err := st.server(program, peers.Program(program, serving...))
			return err
		},
		Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
			return st.ProgramRun(ctx, st.started(program), how, timed(st.Env, args)...)
		},
	}
}

// byItself is a program in C without a serving half.
func byItself(name, program string, args ...string) Contender {
	return Contender{
		Name: name, Needs: []string{"cc"}, Slow: true,
		Prepare: func(_ context.Context, st *Stage) error {
			_, err := st.Compile(program)
			return err
		},
		Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
			return st.ProgramAlone(ctx, program, timed(st.Env, args)...)
		},
	}
}

// pages are random reads of 4 KiB in C: so many connections with so many requests each, so many
// lines of its connection's memory for each command, and further arguments.
func pages(name string, connections, depth, lines int, more ...string) Contender {
	args := append([]string{fmt.Sprint(connections), fmt.Sprint(depth), fmt.Sprint(lines), millis}, more...)
	return inC(name, "pages", served, "ask", args...)
}
