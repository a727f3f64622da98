package bench

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"softiser/initiator/blockio"
)

const flowJobs = `[global]
bs=4k
size=64k
time_based
[writer]
rw=write
flow=8
[reader]
rw=read
flow=1
`

// TestFlow: two jobs whose volumes differ in speed by 50 do operations in the ratio
// of their weights at every moment.
func TestFlow(t *testing.T) {
	for _, extra := range []string{"", "iodepth=4\n", "flow_sleep=100\n"} {
		synctest.Test(t, func(t *testing.T) {
			slow, fast := newFake(t, 1<<20), newFake(t, 1<<20)
			slow.delay, fast.delay = 50*time.Microsecond, time.Microsecond
			text := strings.Replace(flowJobs, "[global]\n", "[global]\nruntime=1\n"+extra, 1)
			open := func(_ context.Context, url string, o OpenOptions) (LUN, error) {
				if url == "reader://" {
					return fast, nil
				}
				return slow, nil
			}
			jobs := parseText(t, text)
			jobs[0].URL, jobs[1].URL = "writer://", "reader://"
			depth := int64(jobs[0].IODepth)
			check := func(when string) {
				w, r := slow.counts[blockio.OpWrite].Load(), fast.counts[blockio.OpRead].Load()
				// Of what has ended on one side, iodepth operations may not have on the other.
				if extra != "flow_sleep=100\n" && (w > 8*(r+depth+2) || r > (w+depth)/8+2) {
					t.Fatalf("%q: %s: %d writes, %d reads", extra, when, w, r)
				}
			}
			slow.hook = func(*blockio.Request) (bool, error) { check("during the run"); return true, nil }
			rep, err := Run(t.Context(), jobs, Config{Open: open})
			if err != nil || rep.Failed() {
				t.Fatal(err, rep.Err())
			}
			w, r := float64(rep.Clones[0].Dir[dirWrite].IOs), float64(rep.Clones[1].Dir[dirRead].IOs)
			if q := w / r; q < 7.9 || q > 8.1 || w < 1000 {
				t.Errorf("%q: %v writes, %v reads: ratio %.2f, want 8", extra, w, r, q)
			}
		})
	}
}

// Members of a flow do operations in the ratio of their weights. Whoever is ahead is told, once,
// when the others have caught up or left; one that looks itself is not.
func TestFlowShare(t *testing.T) {
	told := 0
	f := &flow{issued: 1}
	a := &flowShare{flow: f, weight: 2, resume: func() { told++ }}
	b := &flowShare{flow: f, weight: 1}
	a.join()
	b.join()
	a.join() // again: by its start
	run := func(s *flowShare) (n int) {
		for s.admit() {
			n++
		}
		return n
	}
	if n := run(a); n != 3 || f.weight != 3 || len(f.waiting) != 1 {
		t.Errorf("%d operations are not ahead, of weight %d; %d wait", n, f.weight, len(f.waiting))
	}
	a.admit()
	if n := run(b); n != 3 || told != 1 || len(f.waiting) != 0 {
		t.Errorf("the other did %d; the first was told %d times, and %d wait", n, told, len(f.waiting))
	}
	run(a)
	b.leave()
	if told != 2 || f.weight != 2 || b.issued != 0 {
		t.Errorf("told %d times; weight %d, %d operations of one that has left", told, f.weight, b.issued)
	}
	b.leave() // again: it had not begun
	if n := f.weight; n != 2 {
		t.Errorf("weight %d", n)
	}
	if none := new(flowShare); !none.admit() {
		t.Error("a clone without a flow is ahead")
	}
}

// A job that has ended, or has not begun, holds up nobody.
func TestFlowOfOneLeft(t *testing.T) {
	f := newFake(t, 1<<20)
	r := mustRun(t, f, "[global]\nbs=4k\nsize=1m\n[short]\nflow=1\nnumber_ios=3\n[long]\nflow=1\n[late]\nflow=50\nstartdelay=10ms\n[other]\nflow_id=2\nflow=1\n[waits]\nwait_for=long\nflow=1\n")
	for i, want := range []uint64{3, 256, 256, 256, 256} {
		if got := r.Clones[i].Dir[dirRead].IOs; got != want {
			t.Errorf("job %s has read %d blocks, want %d", r.Clones[i].Job.Name, got, want)
		}
	}
}

// A clone that waits for its flow ends with its time, and when it is told to.
func TestFlowWaitEnds(t *testing.T) {
	for _, text := range []string{
		"[never]\nflow=1000\ntime_based\nruntime=1h\n[other]\nrw=randread\nflow=1\ntime_based\nruntime=2\n",
		"[never]\nflow=1000\ntime_based\nruntime=2\n[other]\nrw=randread\nflow=1\ntime_based\nruntime=2\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t, 1<<20)
			f.hook = func(r *blockio.Request) (bool, error) {
				return true, nil
			}
			f.delay = time.Millisecond
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			began := time.Now()
			if _, err := Run(ctx, parseText(t, text), Config{Open: f.open, URL: "fake://"}); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(began); d > 3100*time.Millisecond {
				t.Errorf("ended after %v", d)
			}
		})
	}
}

func TestWaitFor(t *testing.T) {
	f := newFake(t, 1<<20)
	var order []string
	f.hook = func(r *blockio.Request) (bool, error) {
		name := r.User.(*slot).c.job.Name
		if len(order) == 0 || order[len(order)-1] != name {
			order = append(order, name)
		}
		return true, nil
	}
	mustRun(t, f, "[global]\nsize=64k\nnumjobs=3\n[a]\n[b]\nwait_for=a\n[c]\nwait_for=b\n[d]\nstonewall\n[e]\nwait_for=a\n")
	if got := strings.Join(order, ""); !strings.HasPrefix(got, "abc") || strings.Trim(got[3:], "de") != "" {
		t.Errorf("ran %s, want a, b, c, then d and e", got)
	}
	for text, want := range map[string]string{
		"[a]\nwait_for=a\n":           "it cannot wait for itself",
		"[a]\nwait_for=b\n[b]\n":      "0 jobs before this one have that name",
		"[b]\n[b]\n[a]\nwait_for=b\n": "2 jobs before this one have that name",
	} {
		s, _ := parseJobText(strings.NewReader(text), "t.fio", nil)
		if _, _, err := ParseJobs(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	// Jobs that run one after the other may verify the same range.
	mustRun(t, newFake(t, 1<<20), "[global]\nsize=64k\nrw=write\nverify=crc32c\n[a]\n[b]\nwait_for=a\n[c]\nwait_for=b\n")
}

func TestFloors(t *testing.T) {
	for _, tc := range []struct {
		text string
		code int
		want string // of the error; empty: none
		ios  uint64 // until it ends
	}{
		{"rw=read\nrate_min=3m", int(syscall.EIO), "rate_min=3145728 bytes/s was not met: reads moved 2048000 bytes/s in the last 1s", 1501},
		{"rw=read\nrate_min=2m,9g", int(syscall.EIO), "rate_min=2097152 bytes/s was not met", 1501},
		{"rw=read\nratemin=1m", 0, "", 3000},
		{"rw=write\nrate_min=9g,1m", 0, "", 3000}, // of reads, which there are none of
		{"rw=write\nrate_iops_min=501", int(syscall.EIO), "rate_iops_min=501 was not met: 500 writes per second", 1501},
		{"rw=write\nrate_iops_min=501\nrate_cycle=200\ncontinue_on_error=all", int(syscall.EIO), "rate_iops_min=501", 1101},
		{"rw=write\nrate_iops_min=500", 0, "", 3000},
		{"rw=write\nrate_iops_min=501\nruntime=1", 0, "", 500},
		{"rw=write\nmax_latency=1900", int(syscall.ETIMEDOUT), "write of 4096 bytes at offset 0 took 2ms, longer than max_latency=1.9ms", 1},
		{"rw=write\nmax_latency=2ms", 0, "", 3000},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t, 1<<20)
			f.delay = 2 * time.Millisecond
			r, err := runText(t, f, "[j]\nbs=4k\ntime_based\nruntime=6\n"+tc.text+"\n")
			if err != nil {
				t.Fatal(err)
			}
			s := r.Clones[0]
			n := s.Dir[dirRead].IOs + s.Dir[dirWrite].IOs
			if err := r.Err(); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%q: %v, want %q", tc.text, err, tc.want)
			}
			if s.Code != tc.code || n < tc.ios-1 || n > tc.ios+1 || errors.Is(r.Err(), context.Canceled) || r.Interrupted {
				t.Errorf("%q: code %d after %d operations (interrupted: %v), want %d after %d", tc.text, s.Code, n, r.Interrupted, tc.code, tc.ios)
			}
		})
	}
}
