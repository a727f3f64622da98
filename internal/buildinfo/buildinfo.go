// Package buildinfo says which version of a program runs, whoever has built it: make and the
// packages give the linker a version, go install and go build note the module's version or the
// commit.
package buildinfo

import "runtime/debug"

// Unlinked is what a variable for the linker holds when that was told nothing.
const Unlinked = "unknown"

// Version returns linked if the linker was told one, or what the Go tool has noted.
func Version(linked string) string {
	if linked != Unlinked && linked != "" {
		return linked
	}
	info, _ := debug.ReadBuildInfo()
	return noted(info)
}

// noted is the version of a program that the Go tool has built; info may be nil.
func noted(info *debug.BuildInfo) string {
	if info == nil {
		return Unlinked
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	commit := set["vcs.revision"]
	if commit == "" {
		return Unlinked
	}
	commit = commit[:min(len(commit), 12)]
	if set["vcs.modified"] == "true" {
		commit += "-dirty"
	}
	return commit
}
