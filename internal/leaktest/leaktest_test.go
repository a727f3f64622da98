package leaktest

import (
	"os"
	"strings"
	"testing"

	"softiser/internal/await"
)

func TestMain(m *testing.M) { Main(m) }

func TestLeft(t *testing.T) {
	out := int64(0)
	var c check
	Pool("bytes of something", func() int64 { return out })(&c)
	// This test's own goroutine runs code of the module.
	other := func() string {
		var b strings.Builder
		for line := range strings.Lines(c.left(openFiles())) {
			if strings.Contains(line, "descriptors") || strings.Contains(line, "something") {
				b.WriteString(line)
			}
		}
		return b.String()
	}
	if s := other(); s != "" {
		t.Errorf("nothing is left, but: %s", s)
	}
	out = 3
	if s := other(); s != "3 bytes of something\n" {
		t.Errorf("a pool: %q", s)
	}
	out = 0
	files := openFiles()
	f, err := os.Open("leaktest_test.go")
	if err != nil {
		t.Fatal(err)
	}
	if s := c.left(files); !strings.Contains(s, "1 file descriptors") {
		t.Errorf("a file: %q", s)
	}
	f.Close()
	if !strings.Contains(goroutines(), "leaktest.TestLeft") {
		t.Error("this goroutine is not found")
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go leak(stop, ended)
	await.True(t, "a goroutine is found", func() bool { return strings.Contains(c.left(files), "leaktest.leak") })
	close(stop)
	<-ended
}

func leak(stop, ended chan struct{}) {
	<-stop
	close(ended)
}
