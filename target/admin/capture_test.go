package admin

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"softiser/internal/await"
)

// Who has asked for a capture is in the log; a request without bounds is refused, and no capture
// is left to be stopped.
func TestCaptureAudit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.InfoLevel)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, ln, Backend{Log: zap.New(core)}) }()
	c := NewClient(path)
	defer func() {
		c.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	var out bytes.Buffer
	q := CaptureRequest{Portal: "192.0.2.1:3260", Next: true, Connections: 1, Bytes: 1 << 20, Time: time.Millisecond}
	if res, err := c.Capture(t.Context(), q, &out); err != nil || res != (Captured{}) || out.Len() != 24 {
		t.Errorf("%+v, %v, %d bytes", res, err, out.Len())
	}
	for _, change := range []func(*CaptureRequest){
		func(q *CaptureRequest) { q.Time = 0 },
		func(q *CaptureRequest) { q.Bytes = 0 },
		func(q *CaptureRequest) { q.Connections = 0 },
		func(q *CaptureRequest) { q.Next = false },
		func(q *CaptureRequest) { q.Portal = "somewhere" },
		func(q *CaptureRequest) { q.Peers = []string{"somebody"} },
	} {
		bad := q
		change(&bad)
		if _, err := c.Capture(t.Context(), bad, &out); err == nil {
			t.Errorf("%+v is answered", bad)
		}
	}
	if err := c.StopCapture(t.Context()); err == nil || !strings.Contains(err.Error(), "there is no capture") {
		t.Errorf("nothing to stop: %v", err)
	}
	await.True(t, "the log has the requests", func() bool { return logs.Len() == 8 })
	f := logs.All()[0].ContextMap()
	if f["path"] != "/v1/capture" || f["answer"] != int64(200) || !strings.Contains(f["body"].(string), `"portal":"192.0.2.1:3260"`) {
		t.Errorf("%v", f)
	}
}
