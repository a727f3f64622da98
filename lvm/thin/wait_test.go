package thin

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/lvm/internal/swap"
)

// TestWaitIsGivenUp: whoever gives a wait for space up is told so at once, and
// what it was about to write never comes, although there is space later.
func TestWaitIsGivenUp(t *testing.T) {
	// Each may need a block: a partial write, zeroes and a discard within a
	// block that a snapshot shares, and a staged lease.
	type op func(d *swap.Device, stop blockdev.Stop) error
	lease := func(d *swap.Device, stop blockdev.Stop) error {
		var l blockdev.Lease
		if err := d.LeaseWrite(&l, 0, 4096, blockdev.Wait); err != nil {
			return err
		}
		defer l.Release()
		for _, s := range l.Segs {
			for i := range s {
				s[i] = 9
			}
		}
		return l.CommitUntil(true, stop)
	}
	for name, do := range map[string]op{
		"write": func(d *swap.Device, stop blockdev.Stop) error {
			_, err := d.WriteAtUntil(bytes.Repeat([]byte{9}, 4096), 0, stop)
			return err
		},
		"zeroes":  func(d *swap.Device, stop blockdev.Stop) error { return d.WriteZeroesUntil(0, 4096, true, stop) },
		"discard": func(d *swap.Device, stop blockdev.Stop) error { return d.DiscardUntil(0, 4096, stop) },
		"lease":   lease,
		"lease before a freeze": func(d *swap.Device, stop blockdev.Stop) error {
			var l blockdev.Lease
			if err := d.LeaseRead(&l, 0, 512, blockdev.Wait); err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(context.Background())
			frozen := make(chan error)
			go func() { _, err := d.Freeze(ctx); frozen <- err }()
			time.Sleep(1) // the bubble's: until it waits for the lease, and write leases are staged
			err := lease(d, stop)
			cancel()
			<-frozen
			l.Release()
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, _, data := newPool(t, 1, func(c *Config) { c.ErrorWhenFull = false })
				must(t, p.Create(1, 1))
				inner, err := p.Device(1, 4*chunk, "t", false)
				must(t, err)
				old := bytes.Repeat([]byte{7}, chunk)
				_, err = inner.WriteAt(old, 0)
				must(t, err)
				must(t, p.Snapshot(2, 1, 2))
				d := swap.New(inner, nil)

				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error)
				go func() { done <- do(d, ctx) }()
				time.Sleep(2)
				select {
				case err := <-done:
					t.Fatalf("did not wait: %v", err)
				default:
				}
				cancel()
				synctest.Wait()
				select {
				case err := <-done:
					if !errors.Is(err, blockdev.ErrStopped) {
						t.Fatal(err)
					}
				default:
					t.Error("still waits although it was given up")
					<-done
				}
				data.Grow(8 * chunk)
				must(t, p.Grow())
				synctest.Wait()
				got := make([]byte, chunk)
				_, err = d.ReadAt(got, 0)
				must(t, err)
				if !bytes.Equal(got, old) {
					t.Error("a write that was given up took place")
				}
				if n := p.Usage().Refused; n != 0 {
					t.Errorf("%d writes are said to have been refused", n)
				}
				must(t, d.Close())
				must(t, p.Close())
			})
		})
	}
}
