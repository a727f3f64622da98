package nvmf_test

import (
	"errors"
	"fmt"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/internal/nvme"
	"softiser/target"
	"softiser/target/nvmf"
)

// Whatever a command does to its volume, that it could not be done is what the host is told: nothing is
// acknowledged that has not happened.
func TestFailingVolume(t *testing.T) {
	fua := func(s nvme.SQE) nvme.SQE { s.SetCDW(12, s.CDW(12)|1<<30); return s }
	flush := func(nsid uint32) nvme.SQE { return sqe(func(s *nvme.SQE) { s.Init(nvme.OpFlush, nsid) }) }
	short, long := pattern(4096, 1), pattern(64<<10, 1)
	copied, ranges := copyCommand(1024, nvme.BlockRange{LBA: 0, Blocks: 8})
	for _, c := range []struct {
		name    string
		fails   faulty.Op
		s       nvme.SQE
		in, out []byte
		reads   bool // what fails is a read
	}{
		{"Write, in the capsule", faulty.Write, rw(nvme.OpWrite, 0, 8), nil, short, false},
		{"Write, in the capsule, FUA", faulty.Flush, fua(rw(nvme.OpWrite, 0, 8)), nil, short, false},
		{"Write, fetched", faulty.Write, rw(nvme.OpWrite, 0, 128), nil, long, false},
		{"Write, fetched, FUA", faulty.Flush, fua(rw(nvme.OpWrite, 0, 128)), nil, long, false},
		{"Write without memory", faulty.Lease, rw(nvme.OpWrite, 0, 128), nil, long, false},
		{"Read", faulty.Read, rw(nvme.OpRead, 0, 8), make([]byte, 4096), nil, true},
		{"Compare", faulty.Read, rw(nvme.OpCompare, 0, 8), nil, short, true},
		{"Verify", faulty.Read, rw(nvme.OpVerify, 0, 8), nil, nil, true},
		{"Write Zeroes", faulty.Discard, rw(nvme.OpWriteZeroes, 0, 8), nil, nil, false},
		{"Write Zeroes, FUA", faulty.Flush, fua(rw(nvme.OpWriteZeroes, 0, 8)), nil, nil, false},
		{"Dataset Management", faulty.Discard, sqe(func(s *nvme.SQE) { s.NewDeallocate(1, 1) }), nil, nvme.AppendDSMRange(nil, nvme.BlockRange{LBA: 0, Blocks: 8}), false},
		{"Flush", faulty.Flush, flush(1), nil, nil, false},
		{"Flush of all", faulty.Flush, flush(nvme.NSIDAll), nil, nil, false},
		{"Copy, from", faulty.Read, copied, nil, ranges, true},
		{"Copy, to", faulty.Write, copied, nil, ranges, false},
		{"Copy, FUA", faulty.Flush, fua(copied), nil, ranges, false},
	} {
		for _, e := range []struct {
			err         error
			read, write nvme.Status
		}{{blockdev.ErrMedium, nvme.UnrecoveredRead, nvme.WriteFault}, {blockdev.ErrNoSpace, nvme.CapacityExceeded | nvme.DoNotRetry, nvme.CapacityExceeded | nvme.DoNotRetry}} {
			t.Run(fmt.Sprintf("%s: %v", c.name, e.err), func(t *testing.T) {
				var dev *faulty.Device
				r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
					dev = faulty.New(&lateWriter{Device: s.Namespaces[0].Volume, keep: true}, 1)
					s.Namespaces[0].Volume = dev
				})
				q := r.attach(hostNQN, 10, 1).io[0]
				if err := q.write(0, short); err != nil {
					t.Fatal(err)
				}
				if _, err := q.do(c.s, c.in, c.out); err != nil {
					t.Fatalf("nothing fails yet: %v", err)
				}
				if err := q.write(0, short); err != nil {
					t.Fatal(err)
				}
				dev.SetRules(faulty.Rule{Op: c.fails, Err: &blockdev.Error{Kind: e.err}, Times: 1})
				want := e.write
				if c.reads {
					want = e.read
				}
				_, err := q.do(c.s, c.in, c.out)
				if got, ok := errors.AsType[nvme.Status](err); !ok || got != want || dev.Hits() != 1 {
					t.Errorf("%v after %d failures, want %v", err, dev.Hits(), want)
				}
			})
		}
	}
}
