package admin

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softiser/blockdev/mem"
	"softiser/internal/await"
	"softiser/target/volume"
)

type noFace struct{}

func (noFace) Notify(volume.Event) {}
func (noFace) Left()               {}

// There are at most maxTraces at once; the place of one whose client has gone is free again.
func TestTraces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	volumes := map[string]*volume.Volume{}
	for i := range maxTraces + 1 {
		name := string(rune('a' + i))
		dev, err := mem.Open(mem.Config{Size: 1 << 20, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		var place volume.Place
		var reg volume.Registry
		if volumes[name], err = reg.Map(volume.Config{Device: dev}, &place, volume.PlaceConfig{Name: name, Seed: name, Face: noFace{}}); err != nil {
			t.Fatal(err)
		}
		defer place.Drain(t.Context())
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	backend := Backend{Trace: func(name, _ string, _ uint32, slower time.Duration) (*volume.Trace, error) {
		if volumes[name] == nil {
			return nil, errors.New("no such volume")
		}
		return volumes[name].Trace(slower)
	}}
	go func() { ended <- Serve(ctx, ln, backend) }()
	c := NewClient(path)
	defer func() {
		c.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	asking, stop := context.WithCancel(t.Context())
	begun, over := make(chan bool), make(chan error)
	for i := range maxTraces {
		q := TraceRequest{Volume: string(rune('a' + i))}
		go func() { over <- c.Trace(asking, q, func() { begun <- true }, nil) }()
	}
	for range maxTraces {
		<-begun
	}
	last := TraceRequest{Volume: string(rune('a' + maxTraces))}
	try := func(q TraceRequest) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		return c.Trace(ctx, q, cancel, nil)
	}
	if err := try(last); err == nil || err.Error() != errTraces.Error() {
		t.Errorf("one more than there may be: %v", err)
	}
	stop()
	for range maxTraces {
		if err := <-over; err != nil {
			t.Errorf("a client that goes: %v", err)
		}
	}
	await.True(t, "there is room again", func() bool { return try(last) == nil })
	await.True(t, "the first volume can be traced again", func() bool { return try(TraceRequest{Volume: "a"}) == nil })
	for want, q := range map[string]TraceRequest{
		"no such volume": {Volume: "nobody"},
		"not negative":   {Volume: "a", Count: -1},
	} {
		if err := try(q); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", q, err)
		}
	}
}
