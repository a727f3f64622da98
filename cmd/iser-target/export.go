package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"softiser/blockdev/open"
	"softiser/config"
	"softiser/internal/iscsi"
	"softiser/internal/usage"
	"softiser/target/scsi"
)

// Naming authority of the targets and the subsystems that --export makes.
const (
	exportPrefix    = "iqn.2026-11.softiser:"
	exportNQNPrefix = "nqn.2026-11.softiser:"
)

// exportConfig makes a configuration out of --export values: each is LUN 0 of a target and
// namespace 1 of a subsystem.
func exportConfig(exports []string) (*config.Config, error) {
	cfg, err := config.Default()
	if err != nil {
		return nil, err
	}
	for _, e := range exports {
		name, spec, err := splitExport(e)
		if err != nil {
			return nil, err
		}
		v, err := exportVolume(name, spec)
		if err != nil {
			return nil, fmt.Errorf("--export %q: %w", e, err)
		}
		iqn := exportPrefix + strings.ToLower(name)
		if err := iscsi.CheckName(iqn); err != nil {
			return nil, fmt.Errorf("--export %q: the name becomes part of the target's: %w", e, err)
		}
		for _, t := range cfg.Targets {
			if t.IQN == iqn {
				return nil, fmt.Errorf("--export %q: the name %s is used twice", e, name)
			}
		}
		cfg.Volumes = append(cfg.Volumes, v)
		cfg.Targets = append(cfg.Targets, config.Target{IQN: iqn, LUNs: []config.LUN{{Volume: name}}})
		cfg.Subsystems = append(cfg.Subsystems, config.Subsystem{NQN: exportNQNPrefix + strings.ToLower(name), Namespaces: []config.Namespace{{NSID: 1, Volume: name}}})
	}
	return cfg, nil
}

// splitExport cuts NAME=VOLUME.
func splitExport(e string) (name, spec string, err error) {
	if scheme, _, ok := strings.Cut(e, "://"); ok {
		// Not repeated: it may hold a password.
		return "", "", fmt.Errorf("%s://… is a URL: a volume is a path, memory or null; for one of another target attach that (iser-initiator attach) and export the block device", scheme)
	}
	name, spec, ok := strings.Cut(e, "=")
	if !ok || name == "" || spec == "" {
		return "", "", fmt.Errorf("%q: want NAME=VOLUME, for example disk0=./disk0.img,size=1GiB", e)
	}
	if err := config.CheckVolumeName(name); err != nil {
		return "", "", err
	}
	return name, spec, checkKind(spec)
}

// checkKind refuses a mistyped "memory" or "null", which would make a file of that name here.
func checkKind(spec string) error {
	what, _, _ := strings.Cut(spec, ",")
	kinds := []string{"memory", "null"}
	near := usage.Nearest(what, kinds)
	if near == "" || slices.Contains(kinds, what) || strings.ContainsAny(what, "/.:") {
		return nil
	}
	if _, err := os.Stat(what); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("there is no file %s (did you mean %s?); ./%[1]s makes one of that name", what, near)
}

// cutPlacement takes the option placement= out of a volume's text: it is about how a
// LUN serves the volume, not about the volume.
func cutPlacement(spec string) (rest, placement string, err error) {
	options := strings.Split(spec, ",")
	rest = options[0]
	for _, o := range options[1:] {
		value, is := strings.CutPrefix(o, "placement=")
		if !is {
			rest += "," + o
			continue
		}
		if value == "" {
			return "", "", fmt.Errorf("volume %q: placement is direct or verified", spec)
		}
		var p scsi.Placement
		if err := p.UnmarshalText([]byte(value)); err != nil {
			return "", "", fmt.Errorf("volume %q: %w", spec, err)
		}
		placement = value
	}
	return rest, placement, nil
}

// absoluteSpec makes the path of a volume one that does not depend on where the
// target was started.
func absoluteSpec(spec string) (string, error) {
	bare, _, err := cutPlacement(spec)
	if err != nil {
		return "", err
	}
	s, err := open.Parse(bare)
	if err != nil || s.Path == "" || filepath.IsAbs(s.Path) {
		return spec, err
	}
	abs, err := filepath.Abs(s.Path)
	if err != nil {
		return "", err
	}
	what, options, more := strings.Cut(spec, ",")
	what = strings.TrimSuffix(what, s.Path) + abs
	if more {
		what += "," + options
	}
	return what, nil
}

// exportVolume reads the volume part of an --export.
func exportVolume(name, spec string) (config.Volume, error) {
	spec, placement, err := cutPlacement(spec)
	if err != nil {
		return config.Volume{}, err
	}
	s, err := open.Parse(spec)
	if err != nil {
		return config.Volume{}, err
	}
	s.Name = name
	if err := s.Check(); err != nil {
		return config.Volume{}, err
	}
	return config.Volume{
		Name: name, Type: config.VolumeType(s.Resolve().String()), Path: s.Path, Size: config.Size(s.Size),
		Create: true, Preallocate: s.Prealloc, WriteThrough: s.WriteThrough, ReadOnly: s.ReadOnly,
		BlockSize: config.Size(s.BlockSize), PhysBlockSize: config.Size(s.PhysBlockSize),
		HugePages: s.HugePages, Placement: placement,
	}, nil
}
