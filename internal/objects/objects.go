// Package objects reads and writes objects of an S3-compatible store as streams of any length.
//
// Where the store is, and who we are, is said as the AWS CLI has it: AWS_ENDPOINT_URL_S3 or
// AWS_ENDPOINT_URL (without: Amazon's), AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY
// and AWS_SESSION_TOKEN, or the profile AWS_PROFILE in ~/.aws/credentials.
package objects

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

const scheme = "s3://"

// Is reports whether name is that of an object: s3://BUCKET/KEY.
func Is(name string) bool { return strings.HasPrefix(name, scheme) }

// partSize is how much goes to the store in one request, and is kept in memory until it has
// been taken. A store takes 10,000 of them: an object has up to 625 GiB.
const partSize = 64 << 20

// attempts is how often a request is tried.
const attempts = 4

// place is an object in a store.
type place struct {
	client      *minio.Client
	transport   *http.Transport
	bucket, key string
}

// find makes the client for the bucket of an s3:// name, from the environment that AWS' tools use.
func find(name string) (*place, error) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(name, scheme), "/")
	if bucket == "" || key == "" {
		return nil, fmt.Errorf("%s: want s3://BUCKET/KEY", name)
	}
	endpoint := first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
	o := &minio.Options{
		Creds:  credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}),
		Region: first("AWS_REGION", "AWS_DEFAULT_REGION"), MaxRetries: attempts,
		BucketLookup: minio.BucketLookupPath,
	}
	if endpoint == "" {
		endpoint, o.BucketLookup = "https://s3.amazonaws.com", minio.BucketLookupAuto
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("%s: the store's address in AWS_ENDPOINT_URL_S3 (else AWS_ENDPOINT_URL) is not http(s)://HOST[:PORT]", name)
	}
	o.Secure = u.Scheme == "https"
	p := &place{bucket: bucket, key: key}
	if p.transport, err = minio.DefaultTransport(o.Secure); err != nil {
		return nil, err
	}
	p.transport.DialContext = patiently(connect(p.transport.DialContext))
	o.Transport = p.transport
	if p.client, err = minio.New(u.Host, o); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if v, err := o.Creds.GetWithContext(p.client.CredContext()); err != nil || v.AccessKeyID == "" {
		return nil, fmt.Errorf("%s: no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws/credentials", name)
	}
	return p, nil
}

func first(names ...string) string {
	for _, n := range names {
		if v := os.Getenv(n); v != "" {
			return v
		}
	}
	return ""
}

// reader is an object that is read.
type reader struct {
	*minio.Object
	p *place
}

// Close implements io.Closer.
func (r *reader) Close() error {
	defer r.p.transport.CloseIdleConnections()
	return r.Object.Close()
}

// Open reads an object from its beginning. ctx is good for all of it.
func Open(ctx context.Context, name string) (io.ReadCloser, error) {
	p, err := find(name)
	if err != nil {
		return nil, err
	}
	o, err := p.client.GetObject(ctx, p.bucket, p.key, minio.GetObjectOptions{})
	if err == nil {
		if _, err = o.Stat(); err != nil {
			o.Close()
		}
	}
	if err != nil {
		p.transport.CloseIdleConnections()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &reader{o, p}, nil
}

// uploadKey is the metadata of an object that tells which upload has made it. ETags do not: those
// of equal parts are equal, and with some encryptions they are no checksums.
const uploadKey = "Softiser-Upload"

// Writer is an object that is written. The store has it, or has replaced the one of that name,
// once End(nil) has succeeded, and has nothing before.
type Writer struct {
	name  string
	pw    *io.PipeWriter
	whole atomic.Bool // End(nil) has been called: the object may have been completed
	done  chan error
}

// Create begins to write an object. ctx is good for all of it. The Writer has to be ended.
func Create(ctx context.Context, name string) (*Writer, error) { return create(ctx, name, partSize) }

func create(ctx context.Context, name string, part uint64) (*Writer, error) {
	p, err := find(name)
	if err != nil {
		return nil, err
	}
	pr, pw := io.Pipe()
	w := &Writer{name: name, pw: pw, done: make(chan error, 1)}
	upload := rand.Text()
	go func() {
		// With an MD5 of each part, which every store checks; newer checksums and chunks that
		// are signed not every one knows.
		_, err := p.client.PutObject(ctx, p.bucket, p.key, pr, -1, minio.PutObjectOptions{
			PartSize: part, NumThreads: 1, ContentType: "application/octet-stream", SendContentMd5: true, DisableContentSha256: true,
			UserMetadata: map[string]string{uploadKey: upload},
		})
		if err != nil && w.whole.Load() {
			err = p.completed(ctx, upload, err)
		}
		pr.CloseWithError(err) // whoever still writes is told
		p.transport.CloseIdleConnections()
		w.done <- err
	}()
	return w, nil
}

// completed looks whether the store has the object of an upload whose end has failed: the answer to
// CompleteMultipartUpload may have been lost, and a repetition finds no such upload. It has been
// aborted since, so that what is not there does not come any more.
func (p *place) completed(ctx context.Context, upload string, failed error) error {
	// Of an upload that is interrupted here the truth is wanted, too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	o, err := p.client.StatObject(ctx, p.bucket, p.key, minio.StatObjectOptions{})
	switch {
	case err == nil && o.UserMetadata[uploadKey] == upload:
		return nil
	case err != nil && minio.ToErrorResponse(err).Code != minio.NoSuchKey:
		return fmt.Errorf("%w (whether the store has the object all the same is not known: %w)", failed, err)
	}
	return failed // there is none, or another one
}

// Write implements io.Writer.
func (w *Writer) Write(b []byte) (int, error) {
	n, err := w.pw.Write(b)
	if err != nil {
		err = fmt.Errorf("%s: %w", w.name, err)
	}
	return n, err
}

// End completes the object, or with an error gives it up: what was sent is taken back, and the
// error returned.
func (w *Writer) End(err error) error {
	if err == nil {
		w.whole.Store(true)
		w.pw.Close()
	} else {
		// Not err itself: were it io.EOF or io.ErrUnexpectedEOF, what there is would be taken for all.
		w.pw.CloseWithError(fmt.Errorf("given up: %w", err))
	}
	put := <-w.done
	switch {
	case err != nil:
		return err
	case put != nil:
		return fmt.Errorf("%s: %w", w.name, put)
	}
	return nil
}
