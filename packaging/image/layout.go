package main

import (
	"encoding/json"
	"io"
	"slices"
	"strings"
	"time"
)

// The documents of the OCI image specification, as far as they are used.
type (
	descriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int64             `json:"size"`
		Annotations map[string]string `json:"annotations,omitempty"`
		Platform    *platformName     `json:"platform,omitempty"`
	}
	platformName struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
		Variant      string `json:"variant,omitempty"`
	}
	imageIndex struct {
		SchemaVersion int               `json:"schemaVersion"`
		MediaType     string            `json:"mediaType"`
		Manifests     []descriptor      `json:"manifests"`
		Annotations   map[string]string `json:"annotations,omitempty"`
	}
	manifest struct {
		SchemaVersion int               `json:"schemaVersion"`
		MediaType     string            `json:"mediaType"`
		Config        descriptor        `json:"config"`
		Layers        []descriptor      `json:"layers"`
		Annotations   map[string]string `json:"annotations,omitempty"`
	}
	imageConfig struct {
		Created      time.Time `json:"created"`
		Architecture string    `json:"architecture"`
		Variant      string    `json:"variant,omitempty"`
		OS           string    `json:"os"`
		Config       settings  `json:"config"`
		RootFS       rootFS    `json:"rootfs"`
		History      []history `json:"history"`
	}
	settings struct {
		User         string              `json:"User"`
		ExposedPorts map[string]struct{} `json:"ExposedPorts"`
		Env          []string            `json:"Env"`
		Entrypoint   []string            `json:"Entrypoint"`
		Cmd          []string            `json:"Cmd"`
		Volumes      map[string]struct{} `json:"Volumes"`
		WorkingDir   string              `json:"WorkingDir"`
		Labels       map[string]string   `json:"Labels"`
		StopSignal   string              `json:"StopSignal"`
	}
	rootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	}
	history struct {
		Created   time.Time `json:"created"`
		CreatedBy string    `json:"created_by"`
		Comment   string    `json:"comment,omitempty"`
	}
)

// layout is an OCI image layout: blobs by their digests, and the index where reading begins.
type layout struct {
	created time.Time
	index   imageIndex
	blobs   map[string][]byte // by "sha256:…"
}

func (l *layout) add(mediaType string, b []byte) descriptor {
	d := descriptor{MediaType: mediaType, Digest: digest(b), Size: int64(len(b))}
	l.blobs[d.Digest] = b
	return d
}

func (l *layout) addJSON(mediaType string, v any) (descriptor, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return l.add(mediaType, b), nil
}

// digest is that of the image: of the index of its platforms.
func (l *layout) digest() string { return l.index.Manifests[0].Digest }

// archive writes the layout as a tar, in one order and with one time.
func (l *layout) archive(w io.Writer) error {
	index, err := json.Marshal(l.index)
	if err != nil {
		return err
	}
	entries := []entry{
		{name: "oci-layout", mode: 0o644, content: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{name: "index.json", mode: 0o644, content: index},
		{name: "blobs/", mode: 0o755},
		{name: "blobs/sha256/", mode: 0o755},
	}
	var digests []string
	for d := range l.blobs {
		digests = append(digests, d)
	}
	slices.Sort(digests)
	for _, d := range digests {
		entries = append(entries, entry{name: "blobs/sha256/" + strings.TrimPrefix(d, "sha256:"), mode: 0o644, content: l.blobs[d]})
	}
	return writeTar(w, entries, l.created)
}
