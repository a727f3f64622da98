package rdmatools

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"
)

// exchange is what ucmatose, udaddy and mckey have in common: so many messages of a size on
// each of so many queue pairs, and what the originals print of it.
type exchange struct {
	connections int
	count, size int // messages per queue pair, bytes of each
	json        bool
	out         io.Writer
}

// counts adds the options; each says what is counted.
func (x *exchange) counts(f *pflag.FlagSet, connections, count, size string) {
	f.IntVarP(&x.connections, "connections", "c", 1, connections)
	f.IntVarP(&x.count, "count", "C", 10, count)
	f.IntVarP(&x.size, "size", "S", 100, size)
	f.BoolVar(&x.json, "json", false, "print the outcome as JSON only")
}

func (x *exchange) say(format string, args ...any) {
	if !x.json {
		fmt.Fprintf(x.out, format+"\n", args...)
	}
}

// end says how it has ended, which err tells, and returns that. more is what the outcome has
// beside what is common.
func (x *exchange) end(err error, start time.Time, more map[string]any) error {
	x.say("test complete")
	status := 0
	if err != nil {
		status = 1
	}
	x.say("return status %d", status)
	if !x.json || err != nil {
		return err
	}
	outcome := map[string]any{
		"connections": x.connections, "messages": x.count, "size_bytes": x.size, "seconds": time.Since(start).Seconds(),
	}
	for k, v := range more {
		outcome[k] = v
	}
	return printJSON(x.out, outcome)
}
