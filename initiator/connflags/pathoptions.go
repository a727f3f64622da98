package connflags

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"softiser/initiator/multipath"
)

// pathOptions are how several paths to a volume are used.
type pathOptions struct {
	all         bool
	policy      string
	fence       string
	noPathRetry string
	check       time.Duration
	fs          *pflag.FlagSet
}

// Pings of a session that has other paths beside it: it is to be left soon.
const (
	pathNopInterval = time.Second
	pathNopTimeout  = 2 * time.Second
)

func (o *pathOptions) register(fs *pflag.FlagSet) {
	o.fs = fs
	fs.BoolVar(&o.all, "all-portals", false, "use every portal that the target reports as a path to the volume")
	fs.StringVar(&o.policy, "path-policy", "round-robin", "choice among equally good paths: round-robin or queue-depth")
	fs.StringVar(&o.fence, "path-fence", "session", "what has to happen before writes of a lost path are repeated: session (its session is reinstated, or the storage has moved the volume), reset (that, or a LUN RESET), none")
	fs.StringVar(&o.noPathRetry, "no-path-retry", "120s", "while no path leads to the volume: how long requests wait, fail (at once) or queue (for ever)")
	fs.DurationVar(&o.check, "path-check", 5*time.Second, "interval at which each path is asked whether it still works")
}

// config reads the options.
func (o *pathOptions) config() (c multipath.Config, err error) {
	if c.Policy, err = multipath.ParsePolicy(o.policy); err != nil {
		return c, fmt.Errorf("--path-policy: %w", err)
	}
	if c.Fence, err = multipath.ParseFence(o.fence); err != nil {
		return c, fmt.Errorf("--path-fence: %w", err)
	}
	switch o.noPathRetry {
	case "fail":
		c.NoPathRetry = multipath.FailFast
	case "queue":
		c.NoPathRetry = -1
	default:
		if c.NoPathRetry, err = time.ParseDuration(o.noPathRetry); err != nil || c.NoPathRetry <= 0 {
			return c, fmt.Errorf("--no-path-retry %q: want a time such as 60s, fail or queue", o.noPathRetry)
		}
	}
	if c.CheckInterval = o.check; o.check <= 0 {
		return c, fmt.Errorf("--path-check %v: want more than 0", o.check)
	}
	return c, nil
}
