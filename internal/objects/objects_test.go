package objects

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// store is one with an empty bucket "vols".
func store(t *testing.T) gofakes3.Backend {
	t.Helper()
	b := s3mem.New()
	srv := httptest.NewServer(gofakes3.New(b).Server())
	t.Cleanup(srv.Close)
	if err := b.CreateBucket("vols"); err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"AWS_ENDPOINT_URL_S3": srv.URL, "AWS_ENDPOINT_URL": "", "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "us-east-1"} {
		t.Setenv(k, v)
	}
	return b
}

// An object of several parts comes back as it was, and one that is given up leaves nothing.
func TestObject(t *testing.T) {
	b := store(t)
	data := make([]byte, 17<<20+3)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	for _, n := range []int{len(data), 1000, 1} {
		w, err := create(t.Context(), "s3://vols/a/key", 5<<20)
		if err == nil {
			_, err = io.Copy(w, bytes.NewReader(data[:n]))
			err = w.End(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		r, err := Open(t.Context(), "s3://vols/a/key")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, data[:n]) {
			t.Errorf("%d bytes of %d, %v", len(got), n, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	w, err := create(t.Context(), "s3://vols/other", 5<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data[:12<<20]); err != nil {
		t.Fatal(err)
	}
	gone := errors.New("the volume is gone")
	if err := w.End(gone); err != gone {
		t.Errorf("%v", err)
	}
	if _, err := b.HeadObject("vols", "other"); err == nil {
		t.Error("half an object is there")
	}
}

// An object is given up whatever the reason is, be it one that ends a stream.
func TestGivenUp(t *testing.T) {
	b := store(t)
	for _, reason := range []error{io.EOF, io.ErrUnexpectedEOF} {
		w, err := create(t.Context(), "s3://vols/other", 5<<20)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 6<<20)); err != nil {
			t.Fatal(err)
		}
		if err := w.End(reason); !errors.Is(err, reason) {
			t.Errorf("%v: %v", reason, err)
		}
		if _, err := b.HeadObject("vols", "other"); err == nil {
			t.Errorf("%v: half an object is there", reason)
		}
	}
}

// What does not work is said with the object's name.
func TestRefused(t *testing.T) {
	store(t)
	for name, want := range map[string]string{"s3://": "want s3://BUCKET/KEY", "s3://vols": "want s3://BUCKET/KEY", "s3://vols/": "want s3://BUCKET/KEY", "s3://vols/none": "does not exist", "s3://none/x": "does not exist"} {
		if r, err := Open(t.Context(), name); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
	w, err := Create(t.Context(), "s3://none/x")
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Write([]byte("x"))
	if err := w.End(err); err == nil || !strings.Contains(err.Error(), "s3://none/x") {
		t.Errorf("a bucket that is not there: %v", err)
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "127.0.0.1:9000")
	if _, err := Open(t.Context(), "s3://vols/x"); err == nil || !strings.Contains(err.Error(), "http(s)://") {
		t.Errorf("an address without a scheme: %v", err)
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "")
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	if _, err := Create(t.Context(), "s3://vols/x"); err == nil || !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") {
		t.Errorf("no credentials: %v", err)
	}
	if _, err := os.Stat("x"); err == nil {
		t.Error("an object became a file")
	}
}
