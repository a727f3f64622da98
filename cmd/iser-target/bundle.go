package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"runtime"
	"time"

	"softiser/internal/doctor"
)

// bundle writes what helps to find out from afar what is wrong, without secrets.
func (p *patient) bundle(ctx context.Context, path, log string, findings []doctor.Finding) error {
	mask := doctor.NewMask()
	for _, s := range p.cfg.SecretValues() {
		mask.Add(s)
	}
	parts := []doctor.Part{
		{Name: "version", Read: func() ([]byte, error) {
			return fmt.Appendf(nil, "iser-target %s, %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH), nil
		}},
		{Name: "configuration.yaml", Read: p.configurationPart},
		{Name: "status.json", Read: p.statusPart},
		{Name: "metrics", Read: func() ([]byte, error) { return readMetrics(ctx, p.cfg.Admin.Metrics) }},
		{Name: "log", Read: func() ([]byte, error) { return readLog(ctx, log) }},
	}
	parts = append(parts, doctor.Reports(findings)...)
	if err := doctor.WriteBundle(path, time.Now(), mask, append(parts, p.host.Facts()...)); err != nil {
		return fmt.Errorf("--bundle: %w", err)
	}
	return nil
}

// configurationPart is the configuration as check prints it. The text of one that is wrong
// is not in the bundle: nobody knows what is a secret in it.
func (p *patient) configurationPart() ([]byte, error) {
	return []byte(p.cfg.YAML()), p.err
}

func (p *patient) statusPart() ([]byte, error) {
	if p.status == nil {
		return nil, p.noReply
	}
	return json.MarshalIndent(p.status, "", "  ")
}

// readMetrics asks a target for its metrics.
func readMetrics(ctx context.Context, addr string) ([]byte, error) {
	if addr == "" {
		return nil, errors.New("the configuration has no admin.metrics, at which a target could be asked")
	}
	ctx, cancel := context.WithTimeout(ctx, healthPatience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+reachable([]string{addr})+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	tr := &http.Transport{DisableKeepAlives: true}
	a, err := tr.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	return io.ReadAll(io.LimitReader(a.Body, doctor.PartBound))
}

// journalLines are those of the journal that a bundle has.
const journalLines = "5000"

// readLog reads the end of a log: of a file, or, without one, of the journal of the service.
func readLog(ctx context.Context, file string) ([]byte, error) {
	if file != "" {
		return doctor.ReadEnd(file, doctor.PartBound)
	}
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, "journalctl", "-u", serviceUnit, "-n", journalLines, "--no-pager", "-q")
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w %s; --log names a file", err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.Bytes(), nil
}
