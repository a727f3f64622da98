package buildinfo

import (
	"runtime/debug"
	"testing"
)

func TestVersion(t *testing.T) {
	if v := Version("1.2.3"); v != "1.2.3" {
		t.Error(v)
	}
	if Version(Unlinked) == "" || Version("") == "" {
		t.Error("there is no version at all")
	}
	vcs := func(revision, modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "GOOS", Value: "linux"}, {Key: "vcs.revision", Value: revision}, {Key: "vcs.modified", Value: modified}}
	}
	for want, info := range map[string]*debug.BuildInfo{
		"unknown":            {Main: debug.Module{Version: "(devel)"}},
		"v0.1.0":             {Main: debug.Module{Version: "v0.1.0"}, Settings: vcs("0123456789abcdef", "false")},
		"0123456789ab":       {Main: debug.Module{Version: "(devel)"}, Settings: vcs("0123456789abcdef", "false")},
		"0123456789ab-dirty": {Settings: vcs("0123456789abcdef", "true")},
		"012":                {Settings: vcs("012", "")},
	} {
		if v := noted(info); v != want {
			t.Errorf("%s, want %s", v, want)
		}
	}
	if v := noted(nil); v != Unlinked {
		t.Error(v)
	}
}
