package connflags

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"softiser/initiator"
	"softiser/initiator/blockio"
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
	fs.BoolVar(&o.all, "all-portals", false, "use every portal that the target tells of as a path to the volume")
	fs.StringVar(&o.policy, "path-policy", "round-robin", "choice among equally good paths: round-robin or queue-depth")
	fs.StringVar(&o.fence, "path-fence", "session", "before writes of a lost path are repeated: session (it was reinstated, or the storage has moved the volume), reset (or a LUN RESET), none")
	fs.StringVar(&o.noPathRetry, "no-path-retry", "120s", "while no path leads to the volume: how long requests wait, fail (at once) or queue (for ever)")
	fs.DurationVar(&o.check, "path-check", 5*time.Second, "ask each path so often whether it still works")
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

// Paths splits what stands for a volume into the URLs of its paths, which commas separate.
func Paths(url string) []string {
	var paths []string
	for rest := url; ; {
		i := strings.Index(rest, "://")
		if i < 0 {
			return append(paths, url)
		}
		// The next path begins behind the last comma before the next scheme; lists in
		// options contain commas, too.
		next := strings.Index(rest[i+3:], "://")
		cut := -1
		if next >= 0 {
			cut = strings.LastIndexByte(rest[:i+3+next], ',')
		}
		if cut < 0 {
			return append(paths, rest)
		}
		paths, rest, url = append(paths, rest[:cut]), rest[cut+1:], rest[cut+1:]
	}
}

// Names returns the URL of a volume without secrets; what is no URL stays as it is.
func Names(url string) string {
	var names []string
	for _, p := range Paths(url) {
		c, err := initiator.ParseURL(p)
		if err != nil {
			return url
		}
		names = append(names, c.URL())
	}
	return strings.Join(names, ",")
}

// Check reads the URL of a volume and the options without connecting to anything.
func (o *Options) Check(url string) error {
	_, err := o.configs(url)
	if err == nil {
		_, err = o.path.config()
	}
	return err
}

// configs returns the configuration of each path of url.
func (o *Options) configs(url string) ([]initiator.Config, error) {
	var cs []initiator.Config
	urls := Paths(url)
	for i, u := range urls {
		c, err := o.Config(u)
		if err != nil {
			return nil, err
		}
		if len(urls) > 1 || o.path.all {
			if !o.path.fs.Changed("noop-interval") {
				c.NopInterval = pathNopInterval
			}
			if !o.path.fs.Changed("noop-timeout") {
				c.NopTimeout = pathNopTimeout
			}
			if c.ISID != [6]byte{} {
				c.ISID[5] += byte(i * max(c.Sessions, 1)) // a session of its own
			}
		}
		cs = append(cs, c)
	}
	return cs, nil
}

// UsageError is a URL or an option that cannot be used; nothing has been connected.
type UsageError struct{ err error }

func (e *UsageError) Error() string { return e.err.Error() }
func (e *UsageError) Unwrap() error { return e.err }

// Open opens the volume at url: over one path as a session does that waits for its target
// to come back, over several as package multipath does. tune, where set, changes the
// configuration of every path.
func (o *Options) Open(ctx context.Context, url string, tune func(*initiator.Config)) (blockio.Volume, error) {
	cs, err := o.configs(url)
	mp, perr := o.path.config()
	if err := errors.Join(err, perr); err != nil {
		return nil, &UsageError{err}
	}
	for i := range cs {
		if tune != nil {
			tune(&cs[i])
		}
	}
	if len(cs) == 1 && !o.path.all {
		l, err := initiator.Open(ctx, cs[0])
		if err != nil {
			return nil, err
		}
		return l, nil
	}
	for _, c := range cs {
		if !o.path.all {
			mp.Paths = append(mp.Paths, multipath.LUN(c))
			continue
		}
		found, err := multipath.Portals(ctx, c)
		if err != nil {
			return nil, err
		}
		mp.Paths = append(mp.Paths, found...)
	}
	mp.OnEvent = func(s string) { fmt.Fprintln(os.Stderr, s) }
	v, err := multipath.Open(ctx, mp)
	if err != nil {
		return nil, err
	}
	return v, nil
}
