package admin

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"softiser/internal/await"
	"softiser/target"
)

// Who has asked for what is in the log, with what came of it.
func TestAudit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.InfoLevel)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var got string
	b := Backend{
		Status: func() target.Status { return target.Status{} },
		Kill:   func(uint16) error { return io.ErrUnexpectedEOF },
		AddLUN: func(_ context.Context, _ string, r LUNRequest) error { got = r.Spec; return nil },
		LVM: LVM{Run: func(_ context.Context, args []string, in io.Reader, _, _ io.Writer) error {
			b, err := io.ReadAll(in)
			got = string(b)
			if err == nil {
				err = os.ErrExist
			}
			return err
		}},
		Log: zap.New(core),
	}
	go func() { ended <- Serve(ctx, ln, b) }()
	c := NewClient(path)
	defer func() {
		c.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	if _, err := c.Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(t.Context(), 7); err == nil {
		t.Error("the session is killed")
	}
	long := strings.Repeat("x", 5000)
	if err := c.AddLUN(t.Context(), "iqn.2026-11.test:a", LUNRequest{LUN: 3, Name: "d", Spec: long}); err != nil || got != long {
		t.Errorf("%v, %d bytes of the request have arrived", err, len(got))
	}
	if err := c.LVM(t.Context(), []string{"import", "vg0"}, strings.NewReader("data of a volume"), io.Discard, io.Discard); err == nil || got != "data of a volume" {
		t.Errorf("%v, %q has arrived", err, got)
	}
	await.True(t, "three requests are told", func() bool { return logs.Len() == 3 }) // after each is answered
	for i, want := range []map[string]any{
		{"method": "DELETE", "path": "/v1/sessions/7", "answer": int64(409)},
		{"method": "POST", "path": "/v1/targets/iqn.2026-11.test:a/luns", "answer": int64(204)},
		{"method": "POST", "path": "/v1/lvm?arg=import&arg=vg0", "answer": int64(200), "error": "file already exists"},
	} {
		e := logs.All()[i].ContextMap()
		want["uid"], want["gid"], want["pid"], want["program"] = int64(os.Getuid()), int64(os.Getgid()), int64(os.Getpid()), comm(t)
		for k, v := range want {
			if e[k] != v {
				t.Errorf("line %d: %s is %v, want %v", i, k, e[k], v)
			}
		}
		if body, _ := e["body"].(string); len(body) > auditBody || i == 1 && len(body) != auditBody || i != 1 && body != "" {
			t.Errorf("line %d has %d bytes of the body", i, len(body))
		}
	}
}

func comm(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// Profiles are to be had here.
func TestProfiles(t *testing.T) {
	c, _, _ := start(t)
	for _, p := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/heap"} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://iser-target"+p, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		cancel()
		if err != nil || resp.StatusCode != http.StatusOK || len(b) < 100 {
			t.Errorf("%s: %v, %s, %d bytes", p, err, resp.Status, len(b))
		}
	}
}
