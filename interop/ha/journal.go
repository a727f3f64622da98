package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"softiser/initiator/blockio"
	"softiser/initiator/connflags"
)

// journal writes numbered records around a ring of slots, one at a time: each begins when
// the one before it is flushed. So whatever happens, the records that are there are
// consecutive, up to the last one that was answered or the one after it.
type journal struct {
	at    int64
	slots uint64
	first uint64        // that this run began with
	acked atomic.Uint64 // the last record that is flushed

	volume  blockio.Volume
	stop    context.CancelFunc
	wg      sync.WaitGroup
	longest time.Duration // valid after close
	err     error         // valid after close
}

// open opens a volume with options as the command line has them.
func open(ctx context.Context, url string, options ...string) (blockio.Volume, error) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o := connflags.Register(fs)
	if err := fs.Parse(options); err != nil {
		return nil, err
	}
	return o.Open(ctx, url, connflags.Tuning{KeepTrying: true})
}

// record is what slot n%slots holds after record n.
func record(n uint64) []byte {
	b := make([]byte, blockSize)
	for at := 0; at < len(b)-8; at += 8 {
		binary.LittleEndian.PutUint64(b[at:], n)
	}
	binary.LittleEndian.PutUint64(b[len(b)-8:], uint64(crc32.ChecksumIEEE(b[:len(b)-8]))|1<<63)
	return b
}

// numberOf is the record in a slot; 0 is a slot that was never written.
func numberOf(b []byte) (n uint64, whole bool) {
	sum := binary.LittleEndian.Uint64(b[len(b)-8:])
	n = binary.LittleEndian.Uint64(b)
	if sum == 0 && n == 0 {
		return 0, true
	}
	return n, sum == uint64(crc32.ChecksumIEEE(b[:len(b)-8]))|1<<63
}

// start writes records after the last one of an earlier run.
func (j *journal) start(ctx context.Context, wire string) (err error) {
	if j.volume, err = open(ctx, urlOf(wire), append(patient, "--initiator-name=iqn.2026-11.softiser:journal")...); err != nil {
		return err
	}
	ctx, j.stop = context.WithCancel(ctx)
	j.first, j.longest, j.err = j.acked.Load()+1, 0, nil
	j.wg.Go(func() {
		for n := j.first; ctx.Err() == nil; n++ {
			began := time.Now()
			err := j.volume.Do(context.Background(), &blockio.Request{Op: blockio.OpWrite, Off: j.at + int64(n%j.slots)*blockSize, Buf: record(n)})
			if err == nil {
				err = j.volume.Flush()
			}
			if err != nil {
				j.err = fmt.Errorf("journal, record %d: %w", n, err)
				return
			}
			j.acked.Store(n)
			j.longest = max(j.longest, time.Since(began))
			select {
			case <-ctx.Done():
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	return nil
}

// close ends the writer, when its record has been answered.
func (j *journal) close(ctx context.Context) error {
	j.stop()
	defer context.AfterFunc(ctx, func() { j.volume.Close() })()
	j.wg.Wait()
	return errors.Join(j.err, j.volume.Close())
}

// verify reads the ring.
func (j *journal) verify(ctx context.Context, wire string) error {
	v, err := open(ctx, urlOf(wire), patient...)
	if err != nil {
		return err
	}
	defer v.Close()
	ring := make([]byte, j.slots*blockSize)
	if err := v.Do(ctx, &blockio.Request{Op: blockio.OpRead, Off: j.at, Buf: ring}); err != nil {
		return err
	}
	return checkRing(ring, j.slots, j.acked.Load())
}

// checkRing finds out whether a ring holds what a journal may have left whose record acked
// was the last that was flushed: a record later at most, and those before in order.
func checkRing(ring []byte, slots, acked uint64) error {
	// The slot of the record that may have been under way is what it was, or that record.
	for n := acked + 1; n > acked+1-min(slots, acked+1); n-- {
		got, whole := numberOf(ring[n%slots*blockSize:][:blockSize])
		before := n - min(n, slots) // in this slot, an earlier time around
		switch {
		case n == acked+1 && (!whole || got == n || got == before):
		case !whole:
			return fmt.Errorf("the journal's record %d is torn, and %d was flushed", n, acked)
		case got != n:
			return fmt.Errorf("the journal has record %d where %d has to be, and %d was flushed", got, n, acked)
		}
	}
	return nil
}
