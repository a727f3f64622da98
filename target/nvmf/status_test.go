package nvmf

import (
	"errors"
	"fmt"
	"testing"

	"softiser/blockdev"
	"softiser/internal/nvme"
	"softiser/target/volume"
)

// Of several conditions the one counts that others depend on; those that pass by themselves may be tried again.
func TestStatusOfGates(t *testing.T) {
	all := volume.Closed | volume.NoMedium | volume.Sanitizing | volume.Formatting | volume.SanitizeFailed | volume.Corrupt | volume.Testing | volume.WriteGates
	for _, c := range []struct {
		gates volume.Gate // each with those that come behind it in this table
		want  nvme.Status
	}{
		{volume.Closed, nvme.ANATransition},
		{volume.NoMedium, nvme.NamespaceNotReady},
		{volume.Sanitizing, nvme.SanitizeInProgress},
		{volume.Formatting, nvme.FormatInProgress},
		{volume.SanitizeFailed, nvme.SanitizeFailed | nvme.DoNotRetry},
		{volume.Corrupt, nvme.SanitizeFailed | nvme.DoNotRetry},
		{volume.Testing, nvme.NamespaceNotReady},
		{volume.ReadOnly, nvme.NamespaceWriteProtect | nvme.DoNotRetry},
		{volume.WriteProtected, nvme.NamespaceWriteProtect | nvme.DoNotRetry},
		{volume.Protected, nvme.NamespaceWriteProtect | nvme.DoNotRetry},
	} {
		if got := gateStatus(all); got != c.want {
			t.Errorf("%#x and others: %v, want %v", c.gates, got, c.want)
		}
		if got := gateStatus(c.gates); got != c.want {
			t.Errorf("%#x: %v, want %v", c.gates, got, c.want)
		}
		all &^= c.gates
	}
	// A rewrite that another one has kept from beginning.
	for g, want := range map[volume.Gate]nvme.Status{
		volume.Sanitizing: nvme.SanitizeInProgress, volume.Formatting: nvme.FormatInProgress,
		0: nvme.SanitizeInProgress, volume.ReadOnly: nvme.SanitizeInProgress, // it has ended just now
	} {
		if got := rewritingStatus(g); got != want {
			t.Errorf("%#x after a rewrite: %v, want %v", g, got, want)
		}
	}
	if all != 0 {
		t.Errorf("%#x is not in the table", all)
	}
}

// What a volume's error is to a host, however it is wrapped, and whether it is worth trying again.
func TestStatusOfErrors(t *testing.T) {
	for _, c := range []struct {
		err         error
		read, write nvme.Status
	}{
		{blockdev.ErrMedium, nvme.UnrecoveredRead, nvme.WriteFault},
		{&volume.MarkedError{}, nvme.UnrecoveredRead | nvme.DoNotRetry, nvme.UnrecoveredRead | nvme.DoNotRetry},
		{blockdev.ErrPoisoned, nvme.WriteFault, nvme.WriteFault},
		{errors.Join(blockdev.ErrMedium, blockdev.ErrPoisoned), nvme.WriteFault, nvme.WriteFault},
		{blockdev.ErrOutOfRange, nvme.LBAOutOfRange | nvme.DoNotRetry, nvme.LBAOutOfRange | nvme.DoNotRetry},
		{blockdev.ErrReadOnly, nvme.NamespaceWriteProtect | nvme.DoNotRetry, nvme.NamespaceWriteProtect | nvme.DoNotRetry},
		{blockdev.ErrNoSpace, nvme.CapacityExceeded | nvme.DoNotRetry, nvme.CapacityExceeded | nvme.DoNotRetry},
		{blockdev.ErrNotSupported, nvme.InvalidOpcode | nvme.DoNotRetry, nvme.InvalidOpcode | nvme.DoNotRetry},
		{blockdev.ErrInactive, nvme.ANATransition, nvme.ANATransition},
		{blockdev.ErrClosed, nvme.NamespaceNotReady, nvme.NamespaceNotReady},
		{blockdev.ErrInUse, nvme.NamespaceNotReady, nvme.NamespaceNotReady},
		{errors.New("something else"), nvme.InternalError, nvme.InternalError},
	} {
		for _, err := range []error{c.err, fmt.Errorf("a write: %w", c.err), &blockdev.Error{Kind: c.err}} {
			if got := errStatus(err, volume.Reading); got != c.read {
				t.Errorf("reading, %v: %v, want %v", err, got, c.read)
			}
			if got := errStatus(err, volume.Writing); got != c.write {
				t.Errorf("writing, %v: %v, want %v", err, got, c.write)
			}
		}
	}
}
