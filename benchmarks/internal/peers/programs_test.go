package peers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softiser/benchmarks/internal/proc"
	"softiser/benchmarks/internal/result"
	"softiser/internal/race"
)

// ask measures by the asking half of a program, beside a serving half with those words.
func ask(program string, serving []string, how string, args ...string) func(*testing.T, *Env) result.Values {
	return func(t *testing.T, e *Env) result.Values {
		s, err := Program(program, serving...)(e)
		if s != nil {
			t.Cleanup(s.Close)
		}
		if err != nil {
			t.Fatal(err)
		}
		return measured(t)(e.ProgramRun(t.Context(), s, how, args...))
	}
}

func byItself(program string, args ...string) func(*testing.T, *Env) result.Values {
	return func(t *testing.T, e *Env) result.Values {
		if _, err := e.Compile(program); err != nil {
			t.Fatal(err)
		}
		return measured(t)(e.ProgramAlone(t.Context(), program, args...))
	}
}

func measured(t *testing.T) func(result.Values, error) result.Values {
	return func(v result.Values, err error) result.Values {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Every program in C compiles without a warning, moves something, and what it prints is read.
func TestPrograms(t *testing.T) {
	if _, ok := proc.Have("cc"); !ok {
		t.Skip("there is no cc")
	}
	if race.Enabled {
		t.Skip("the programs are in C, and each is started from one goroutine")
	}
	strict := append([]string{"-Werror"}, cFlags...)
	cFlags, strict = strict, cFlags
	defer func() { cFlags = strict }()
	e := &Env{Scratch: t.TempDir(), Dur: 50 * time.Millisecond, Place: proc.Free}
	volume := filepath.Join(e.Scratch, "volume")
	if err := os.WriteFile(volume, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	memory := []string{"16"}    // MiB
	const latency, bytes = 1, 2 // what there is beside a rate
	runs := map[string]map[string]struct {
		has int
		run func(*testing.T, *Env) result.Values
	}{
		"pingpong": {
			"echo": {latency | bytes, ask("pingpong", nil, "wait", "8", "300")}, "read": {latency | bytes, ask("pingpong", memory, "wait", "read", "300")},
			"write": {latency | bytes, ask("pingpong", memory, "spin", "write", "300")},
		},
		"stream": {
			"send": {bytes, ask("stream", memory, "send", "plain", "1", "300")}, "take": {bytes, ask("stream", memory, "take", "fpdu", "4", "300")}, "take, spinning": {bytes, ask("stream", memory, "take", "crc", "4", "300", "spin")},
			"send with CRC": {bytes, ask("stream", memory, "send", "crc", "4", "300")},
		},
		"pages": {
			"one": {latency | bytes, ask("pages", memory, "ask", "1", "128", "0", "300", "crc")}, "many": {latency | bytes, ask("pages", memory, "ask", "40", "4", "96", "300")},
		},
		"paced": {
			"plain": {bytes, ask("paced", memory, "plain", "100000000", "300")}, "crc": {bytes, ask("paced", memory, "crc", "100000000", "300")},
		},
		"sends": {
			"read": {latency | bytes, ask("sends", memory, "read", "300")}, "two": {latency | bytes, ask("sends", memory, "two", "300")},
			"one": {latency | bytes, ask("sends", memory, "one", "300")},
		},
		"late": {"beside": {latency, byItself("late", "beside", "300")}},
		"hop":  {"between": {latency | bytes, acrossHop}},
		"kept": {"asks": {latency | bytes, keeping(true)}, "takes": {latency | bytes, keeping(false)}},
		"first": {
			"worker": {latency | bytes, ask("first", []string{volume}, "worker", volume, "524288")}, "inline": {latency | bytes, ask("first", []string{volume}, "inline", volume, "524288")},
		},
		"disk": {
			"cold": {latency | bytes, ask("disk", []string{volume}, "cold", volume, "4", "300")}, "ahead": {latency | bytes, ask("disk", []string{volume}, "ahead", volume, "1", "300")},
			"durable": {latency | bytes, ask("disk", []string{volume}, "durable", volume, "4", "300")},
		},
	}
	all, err := sources.ReadDir("c")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		name, ok := strings.CutSuffix(f.Name(), ".c")
		if ok && runs[name] == nil {
			t.Errorf("nobody runs %s", f.Name())
		}
	}
	for program, ways := range runs {
		for way, r := range ways {
			t.Run(program+"/"+way, func(t *testing.T) {
				v := r.run(t, e)
				if v[result.IOPS] <= 0 || r.has&latency != 0 && v[result.P99] < v[result.P50] || (r.has&latency != 0) != (v[result.P50] > 0) || (r.has&bytes != 0) != (v[result.BW] > 0) {
					t.Errorf("%v", v)
				}
			})
		}
	}
}

// acrossHop is fio through the hop to nbdkit.
func acrossHop(t *testing.T, e *Env) result.Values {
	if _, err := e.Compile("hop"); err != nil {
		t.Fatal(err)
	}
	needs(t, "nbdkit", "fio")
	behind, err := NbdkitUnix(e)
	if behind != nil {
		defer behind.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := Hop(e, behind)
	if s != nil {
		defer s.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return measured(t)(e.Fio(t.Context(), s, Load{RW: "randread", BS: "4k", Depth: 8}))
}

// keeping is fio's writes through the process that keeps payload: of 1 MiB, and of an odd length,
// which does not come in whole calls.
func keeping(asks bool) func(*testing.T, *Env) result.Values {
	return func(t *testing.T, e *Env) (v result.Values) {
		if _, err := e.Compile("kept"); err != nil {
			t.Fatal(err)
		}
		needs(t, "fio")
		s, err := Kept(e, "16", 8, asks)
		if s != nil {
			defer s.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, bs := range []string{"84k", "1m"} {
			v = measured(t)(e.Fio(t.Context(), s, Load{RW: "randwrite", BS: bs, Depth: 8}))
		}
		return v
	}
}

func needs(t *testing.T, peers ...string) {
	for _, peer := range peers {
		if _, ok := proc.Have(peer); !ok {
			t.Skip(peer + " is not installed")
		}
	}
}
