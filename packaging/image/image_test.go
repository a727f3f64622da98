package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const epoch = "1764144000"

// program is an ELF header with what comes behind it; loader adds a program header that asks for one.
func program(t *testing.T, m elf.Machine, loader bool, content string) []byte {
	t.Helper()
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(m), Version: 1, Ehsize: 64, Phentsize: 56, Phoff: 64}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	var b bytes.Buffer
	p := elf.Prog64{Type: uint32(elf.PT_INTERP)}
	if loader {
		h.Phnum = 1
	}
	for _, v := range []any{h, p} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	b.WriteString(content)
	return b.Bytes()
}

// built makes a folder for each architecture, and the arguments that name them.
func built(t *testing.T) []string {
	t.Helper()
	var args []string
	for _, arch := range []string{"amd64", "arm64"} {
		dir := filepath.Join(t.TempDir(), arch)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range programs {
			if err := os.WriteFile(filepath.Join(dir, name), program(t, machines[arch].machine, false, name+" of "+arch), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		args = append(args, arch+"="+dir)
	}
	return args
}

func archive(t *testing.T, args []string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.tar")
	if err := run(append([]string{"-version", "1.2.3", "-revision", "abc", "-out", out}, args...), epoch, io.Discard); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// unpack reads a tar and checks what must be true of all of ours: one time, parents first.
func unpack(t *testing.T, r io.Reader) (map[string]*tar.Header, map[string][]byte) {
	t.Helper()
	headers, contents := map[string]*tar.Header{}, map[string][]byte{}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return headers, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		if fmt.Sprint(h.ModTime.Unix()) != epoch {
			t.Errorf("%s is of %v", h.Name, h.ModTime)
		}
		if dir := path.Dir(name); dir != "." && headers[dir] == nil {
			t.Errorf("%s comes before its folder", h.Name)
		}
		if headers[name] != nil {
			t.Errorf("%s is there twice", h.Name)
		}
		headers[name] = h
		if contents[name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
}

// reader goes from descriptor to blob and takes none that is not what the descriptor says.
type reader struct {
	t     *testing.T
	files map[string][]byte
	read  map[string]bool
}

func (r *reader) blob(d map[string]any, mediaType string) []byte {
	r.t.Helper()
	if d["mediaType"] != mediaType {
		r.t.Errorf("%v is a %v, not %s", d["digest"], d["mediaType"], mediaType)
	}
	name := "blobs/" + strings.Replace(d["digest"].(string), ":", "/", 1)
	b, ok := r.files[name]
	if !ok {
		r.t.Fatalf("there is no %s", name)
	}
	if float64(len(b)) != d["size"] || digest(b) != d["digest"] {
		r.t.Errorf("%s has %d bytes and the digest %s: %v", name, len(b), digest(b), d)
	}
	r.read[name] = true
	return b
}

func (r *reader) document(b []byte) map[string]any {
	r.t.Helper()
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		r.t.Fatal(err)
	}
	return v
}

func list(v any) (all []map[string]any) {
	for _, e := range v.([]any) {
		all = append(all, e.(map[string]any))
	}
	return all
}

// TestLayout reads the archive as a registry's client does, by the words of the specification and not by our types.
func TestLayout(t *testing.T) {
	_, files := unpack(t, bytes.NewReader(archive(t, built(t))))
	r := &reader{t, files, map[string]bool{}}
	if got := string(files["oci-layout"]); got != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("oci-layout: %s", got)
	}
	top := list(r.document(files["index.json"])["manifests"])
	if len(top) != 1 {
		t.Fatalf("the archive has %d images", len(top))
	}
	if ref := top[0]["annotations"].(map[string]any)["org.opencontainers.image.ref.name"]; ref != "1.2.3" {
		t.Errorf("its reference is %v", ref)
	}
	index := r.document(r.blob(top[0], "application/vnd.oci.image.index.v1+json"))
	if index["mediaType"] != "application/vnd.oci.image.index.v1+json" || index["schemaVersion"] != 2.0 {
		t.Errorf("index: %v", index)
	}
	var platforms []string
	for _, d := range list(index["manifests"]) {
		where := d["platform"].(map[string]any)
		arch := where["architecture"].(string)
		platforms = append(platforms, fmt.Sprint(where["os"], "/", arch))

		m := r.document(r.blob(d, "application/vnd.oci.image.manifest.v1+json"))
		config := r.document(r.blob(m["config"].(map[string]any), "application/vnd.oci.image.config.v1+json"))
		if config["architecture"] != arch || config["os"] != "linux" || config["created"] != "2025-11-26T08:00:00Z" {
			t.Errorf("%s: its configuration is of %v, %v, %v", arch, config["architecture"], config["os"], config["created"])
		}
		how := config["config"].(map[string]any)
		if how["User"] != "65532:65532" || how["StopSignal"] != "SIGTERM" {
			t.Errorf("%s: %v", arch, how)
		}
		labels := how["Labels"].(map[string]any)
		for k, want := range map[string]string{"version": "1.2.3", "revision": "abc", "title": "softiser", "created": "2025-11-26T08:00:00Z"} {
			if labels["org.opencontainers.image."+k] != want {
				t.Errorf("%s: label %s is %v", arch, k, labels["org.opencontainers.image."+k])
			}
		}
		layers := list(m["layers"])
		if len(layers) != 1 {
			t.Fatalf("%s: %d layers", arch, len(layers))
		}
		z, err := gzip.NewReader(bytes.NewReader(r.blob(layers[0], "application/vnd.oci.image.layer.v1.tar+gzip")))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		if ids := config["rootfs"].(map[string]any)["diff_ids"]; !reflect.DeepEqual(ids, []any{digest(plain)}) {
			t.Errorf("%s: the layer is %s, the configuration says %v", arch, digest(plain), ids)
		}
		headers, contents := unpack(t, bytes.NewReader(plain))
		for _, name := range programs {
			h := headers["usr/bin/"+name]
			if h == nil || h.Mode != 0o755 || h.Uid != 0 || !bytes.HasSuffix(contents["usr/bin/"+name], []byte(name+" of "+arch)) {
				t.Errorf("%s: %s is %+v", arch, name, h)
			}
		}
		for _, name := range []string{"var/lib/softiser", "run/softiser"} {
			if h := headers[name]; h == nil || h.Uid != user || h.Gid != group || h.Typeflag != tar.TypeDir {
				t.Errorf("%s: the target cannot write to %s: %+v", arch, name, h)
			}
		}
		if headers[strings.TrimPrefix(how["Entrypoint"].([]any)[0].(string), "/")] == nil {
			t.Errorf("%s: there is no %v", arch, how["Entrypoint"])
		}
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !reflect.DeepEqual(platforms, want) {
		t.Errorf("it is for %v", platforms)
	}
	for name := range files {
		if strings.HasPrefix(name, "blobs/sha256/") && !r.read[name] {
			t.Errorf("nothing refers to %s", name)
		}
	}
}

func TestReproducible(t *testing.T) {
	a := archive(t, built(t))
	here := time.Local
	time.Local = time.FixedZone("elsewhere", 5*3600)
	defer func() { time.Local = here }()
	if b := archive(t, built(t)); !bytes.Equal(a, b) {
		t.Error("the same programs made two images")
	}
}

func TestRefused(t *testing.T) {
	args := built(t)
	amd64 := strings.TrimPrefix(args[0], "amd64=")
	bad := func(content []byte) string {
		dir := t.TempDir()
		for _, name := range programs {
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	out := filepath.Join(t.TempDir(), "image.tar")
	for want, c := range map[string]struct {
		epoch string
		args  []string
	}{
		"needed":                            {epoch, []string{"-version", "1", args[0]}},
		"SOURCE_DATE_EPOCH":                 {"", []string{"-version", "1", "-out", out, args[0]}},
		"not ARCH=DIR":                      {epoch, []string{"-version", "1", "-out", out, amd64}},
		"sparc: no such architecture":       {epoch, []string{"-version", "1", "-out", out, "sparc=" + amd64}},
		"EM_X86_64, not EM_AARCH64":         {epoch, []string{"-version", "1", "-out", out, "arm64=" + amd64}},
		"not static":                        {epoch, []string{"-version", "1", "-out", out, "amd64=" + bad(program(t, elf.EM_X86_64, true, ""))}},
		"iser-target for amd64: bad magic":  {epoch, []string{"-version", "1", "-out", out, "amd64=" + bad([]byte("#!/bin/sh\n# no program at all, but long enough"))}},
		"iser-target: no such file":         {epoch, []string{"-version", "1", "-out", out, "amd64=" + t.TempDir()}},
		"open none/.image-":                 {epoch, []string{"-version", "1", "-out", "none/image.tar", args[0]}},
		"flag provided but not defined: -x": {epoch, []string{"-x"}},
	} {
		err := run(c.args, c.epoch, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(out), "*")); len(left) != 0 {
			t.Errorf("%q left %v", want, left)
		}
	}
}

// TestContainerfile: who builds with a daemon gets a container that starts alike.
func TestContainerfile(t *testing.T) {
	text, err := os.ReadFile("Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for line := range strings.Lines(string(text)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		said[word] = rest // the last stage's
	}
	array := func(v []string) string { b, _ := json.Marshal(v); return string(b) }
	for word, want := range map[string]string{
		"USER": started.User, "WORKDIR": started.WorkingDir, "ENV": started.Env[0], "STOPSIGNAL": started.StopSignal,
		"ENTRYPOINT": array(started.Entrypoint), "CMD": array(started.Cmd), "VOLUME": array([]string{stateDir}),
	} {
		if said[word] != want {
			t.Errorf("%s %s; the image has %s", word, said[word], want)
		}
	}
	if ports := strings.Fields(said["EXPOSE"]); !reflect.DeepEqual(set(ports...), started.ExposedPorts) {
		t.Errorf("EXPOSE %v; the image has %v", ports, started.ExposedPorts)
	}
	for _, e := range rootfs([][]byte{nil, nil}) {
		if len(e.content) > 0 && !strings.Contains(string(text), strings.ReplaceAll(string(e.content), "\n", `\n`)) {
			t.Errorf("it does not make /%s as the image has it", e.name)
		}
	}
}
