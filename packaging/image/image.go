package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"
)

// Media types of the OCI image specification.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// image is what is to be made: one manifest for each platform, in their order.
type image struct {
	version   string
	revision  string // "": unknown
	created   time.Time
	platforms []platform
}

type platform struct {
	arch     string
	programs [][]byte // in the order of the list
}

// started is how a container runs, unless it is told otherwise.
var started = settings{
	User:         fmt.Sprintf("%d:%d", user, group),
	ExposedPorts: set("3260/tcp", "4420/tcp", "8009/tcp", "4791/udp", "9326/tcp"), // iSCSI and iSER, NVMe, its discovery, RoCE, metrics
	Env:          []string{"PATH=/usr/bin"},
	Entrypoint:   []string{"/usr/bin/iser-target"},
	Cmd:          []string{"serve", "--config", "/etc/softiser/iser-target.yaml"},
	Volumes:      set(stateDir),
	WorkingDir:   stateDir,
	StopSignal:   "SIGTERM",
}

// set is one as the specification writes it.
func set(names ...string) map[string]struct{} {
	all := map[string]struct{}{}
	for _, n := range names {
		all[n] = struct{}{}
	}
	return all
}

// labels describe the image; manifests carry them as annotations, too.
func (im *image) labels() map[string]string {
	l := map[string]string{
		"org.opencontainers.image.title":       "softiser",
		"org.opencontainers.image.description": "iSER, iSCSI and NVMe over Fabrics target and initiator in user space, without RDMA hardware",
		"org.opencontainers.image.version":     im.version,
		"org.opencontainers.image.created":     im.created.Format(time.RFC3339),
	}
	if im.revision != "" {
		l["org.opencontainers.image.revision"] = im.revision
	}
	return l
}

// layout packs the image: blobs, an index of its platforms, and the archive's own index, which
// names that one by the version.
func (im *image) layout() (*layout, error) {
	l := &layout{created: im.created, blobs: map[string][]byte{}}
	index := imageIndex{SchemaVersion: 2, MediaType: typeIndex, Annotations: im.labels()}
	for _, p := range im.platforms {
		d, err := im.add(l, p)
		if err != nil {
			return nil, err
		}
		index.Manifests = append(index.Manifests, d)
	}
	d, err := l.addJSON(typeIndex, index)
	if err != nil {
		return nil, err
	}
	d.Annotations = map[string]string{"org.opencontainers.image.ref.name": im.version}
	l.index = imageIndex{SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{d}}
	return l, nil
}

// add puts the layer, the configuration and the manifest of one platform into l.
func (im *image) add(l *layout, p platform) (descriptor, error) {
	m, ok := machines[p.arch]
	if !ok {
		return descriptor{}, fmt.Errorf("%s: no such architecture here", p.arch)
	}
	for i, program := range p.programs {
		if err := fits(program, p.arch); err != nil {
			return descriptor{}, fmt.Errorf("%s for %s: %w", programs[i], p.arch, err)
		}
	}
	var plain, packed bytes.Buffer
	if err := writeTar(&plain, rootfs(p.programs), im.created); err != nil {
		return descriptor{}, err
	}
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(plain.Bytes()); err != nil {
		return descriptor{}, err
	}
	if err := z.Close(); err != nil {
		return descriptor{}, err
	}
	layer := l.add(typeLayer, packed.Bytes())

	how := started
	how.Labels = im.labels()
	config, err := l.addJSON(typeConfig, imageConfig{
		Created: im.created, Architecture: p.arch, Variant: m.variant, OS: "linux", Config: how,
		RootFS:  rootFS{Type: "layers", DiffIDs: []string{digest(plain.Bytes())}},
		History: []history{{Created: im.created, CreatedBy: "packaging/image", Comment: strings.Join(programs, ", ")}},
	})
	if err != nil {
		return descriptor{}, err
	}
	d, err := l.addJSON(typeManifest, manifest{
		SchemaVersion: 2, MediaType: typeManifest, Config: config, Layers: []descriptor{layer}, Annotations: im.labels(),
	})
	d.Platform = &platformName{Architecture: p.arch, Variant: m.variant, OS: "linux"}
	return d, err
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }
