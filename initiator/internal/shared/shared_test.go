package shared

import (
	"errors"
	"testing"

	"softiser/rdma"
)

type device struct{ closed int }

func (d *device) Close() error { d.closed++; return nil }

func TestDevices(t *testing.T) {
	var opened []*device
	fail := errors.New("no device")
	var err error
	s := Devices[*device]{Open: func(rdma.Provider) (*device, error) {
		if err != nil {
			return nil, err
		}
		opened = append(opened, new(device))
		return opened[len(opened)-1], nil
	}}
	acquire := func(p rdma.Provider, want *device) {
		t.Helper()
		d, err := s.Acquire(p)
		if err != nil || want != nil && d != want {
			t.Fatalf("got device %p and error %v, want %p", d, err, want)
		}
	}
	err = fail
	if _, got := s.Acquire(rdma.ProviderIWARP); got != fail || s.Users() != 0 {
		t.Fatalf("a device that cannot be opened has %d users and the error %v", s.Users(), got)
	}
	err = nil
	acquire(rdma.ProviderIWARP, nil)
	acquire(rdma.ProviderIWARP, opened[0])
	acquire(rdma.ProviderRoCE, nil)
	if len(opened) != 2 || s.Users() != 3 {
		t.Fatalf("%d devices for two providers, %d users", len(opened), s.Users())
	}
	for i, want := range []int{0, 1} { // closed with the last user, not before
		if err := s.Release(rdma.ProviderIWARP); err != nil || opened[0].closed != want {
			t.Fatalf("after %d releases: closed %d times, error %v", i+1, opened[0].closed, err)
		}
	}
	acquire(rdma.ProviderIWARP, nil)
	if len(opened) != 3 || opened[1].closed != 0 {
		t.Fatalf("the device that was closed is used again, or the other provider's was closed")
	}
}
