package handover

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softiser/internal/await"
)

// What comes of a program that is started is said by its handover, if it has come that far,
// though its end is noticed first; otherwise by its end.
func TestSuccession(t *testing.T) {
	s := NewSuccession[int]()
	start := func(binary string, args ...string) (int, func(), error) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		return s.Start(ctx, Program{Binary: binary, Args: args, Told: "nobody tells"})
	}
	for binary, want := range map[string]string{
		"/nowhere": "starting the new process", "/bin/true": "(exit status 0); nobody tells why", "/bin/false": "(exit status 1); nobody tells why",
	} {
		if _, _, err := start(binary); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", binary, err)
		}
	}
	for _, why := range []error{errors.New("not now"), nil} {
		begun, over := make(chan struct{}), make(chan bool)
		mark := filepath.Join(t.TempDir(), "runs")
		go func() {
			given, _ := s.Serve(nil, func() (int, bool, error) {
				close(begun)
				await.Until(func() bool { _, err := os.Stat(mark); return err == nil })
				time.Sleep(200 * time.Millisecond) // for the end of the program to be noticed; less than that takes would prove nothing
				return 7, why == nil, why
			})
			over <- given
		}()
		<-begun
		told, told7, err := start("/bin/sh", "-c", "> "+mark)
		switch {
		case why != nil && !errors.Is(err, why):
			t.Errorf("it was refused: %v", err)
		case why == nil && (err != nil || told != 7):
			t.Errorf("it has taken over: %d, %v", told, err)
		case why == nil:
			told7()
		}
		if given := <-over; given != (why == nil) {
			t.Error(given)
		}
	}
	old, now := pair(t)
	s.patience = 50 * time.Millisecond
	got := make(chan error)
	go func() {
		_, err := Take(now, "new", 1, await.Deadline)
		got <- err
	}()
	if given, err := s.Serve(old, func() (int, bool, error) { panic("a turn that is taken") }); given || !errors.Is(err, ErrBusy) {
		t.Errorf("after one that has everything: %v", err)
	}
	if err := <-got; !errors.Is(err, ErrRefused) {
		t.Errorf("the new one: %v", err)
	}
}

// Behind the end nobody gets a turn, and who has one keeps the end waiting.
func TestSuccessionEnds(t *testing.T) {
	s := NewSuccession[int]()
	begun, going := make(chan struct{}), make(chan struct{})
	done := make(chan error)
	go func() {
		_, err := s.Serve(nil, func() (int, bool, error) {
			close(begun)
			<-going
			return 0, false, errors.New("no")
		})
		done <- err
	}()
	<-begun
	ended := make(chan struct{})
	go func() {
		s.End()
		close(ended)
	}()
	select {
	case <-ended:
		t.Error("it has not waited")
	case <-time.After(20 * time.Millisecond):
	}
	close(going)
	<-done
	<-ended
	old, now := pair(t)
	now.Close()
	if _, err := s.Serve(old, func() (int, bool, error) { panic("it has ended") }); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	if _, _, err := s.Start(t.Context(), Program{Binary: "/bin/sleep", Args: []string{"100"}}); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	s.End()
}
