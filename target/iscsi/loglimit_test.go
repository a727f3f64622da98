package iscsi

import (
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// What a peer asks for again and again is counted; its lines in the log are few.
func TestLogIsLimited(t *testing.T) {
	log, lines := observedLog()
	s := serve(t, func(c *serverConfig, _ *Target) { c.Log = log })
	r := s.session()
	began := time.Now()
	const requests = 500
	for range requests {
		if code := r.task(iscsi.AbortTask, 0, 0x7777, r.cmdSN); code != iscsi.TaskNotFound {
			t.Fatalf("ABORT TASK of nothing: response %d", code)
		}
	}
	n, most := 0, 16+1+int(time.Since(began)/time.Second)
	for _, l := range lines() {
		if l["function"] == iscsi.AbortTask.String() {
			n++
		}
	}
	if n == 0 || n > most {
		t.Errorf("%d lines about %d requests, want 1 to %d", n, requests, most)
	}
	if got := s.Status().Sessions[0].TaskRequests; got != requests {
		t.Errorf("%d requests counted, want %d", got, requests)
	}
}
