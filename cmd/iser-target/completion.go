package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"softiser/internal/usage"
	"softiser/target"
)

// Shell completion of what the shell cannot know: names of the running target, and the
// words of --export.

// completed is what the shell offers for flags, whatever command they belong to; those that
// have something to ask have a function of their own.
var completed = map[string]usage.Values{
	"config": {Endings: []string{"yaml", "yml"}},
	"socket": {Files: true}, "write": {Files: true}, "bundle": {Files: true}, "log": {Files: true}, "binary": {Files: true},
	"metrics": {Words: []string{"127.0.0.1:9326"}},
	// lvm
	"devices": {Files: true}, "file": {Files: true},
	"input": {Words: []string{"s3://"}, Files: true}, "output": {Words: []string{"s3://"}, Files: true},
	"alloc":        {Words: []string{"contiguous", "cling", "normal", "anywhere"}},
	"discards":     {Words: []string{"ignore", "nopassdown", "passdown"}},
	"permission":   {Words: []string{"r", "rw"}},
	"reportformat": {Words: []string{"basic", "json"}},
	"type":         {Words: []string{"linear", "striped", "snapshot", "thin", "thin-pool"}},
	"units":        {Words: []string{"r", "h", "b", "s", "k", "m", "g", "t"}},
	"zero":         yes, "errorwhenfull": yes, "setactivationskip": yes, "setautoactivation": yes, "activate": yes, "wipesignatures": yes, "poolmetadataspare": yes,
	"next": {}, "peer": {}, "size": {}, "agreed": {}, "addtag": {}, "deltag": {}, "uuid": {}, "name": {}, "select": {}, "separator": {},
	"chunksize": {}, "dataalignment": {}, "extents": {}, "metadatasize": {}, "physicalextentsize": {}, "poolmetadatasize": {},
	"setphysicalvolumesize": {}, "stripesize": {}, "virtualsize": {},
}

var yes = usage.Values{Words: []string{"y", "n"}}

// complete has the shell offer values of flags, and no files where a command has no arguments.
func complete(root *cobra.Command) {
	usage.Complete(root, completed)
	noArguments(root)
}

func noArguments(c *cobra.Command) {
	for _, sub := range c.Commands() {
		noArguments(sub)
	}
	if c.ValidArgsFunction == nil && !c.HasSubCommands() {
		c.ValidArgsFunction = usage.Arguments(false)
	}
}

// completer offers values for the word that is being typed, given the arguments before it.
type completer func(args []string, word string) []string

// completeArgs completes the arguments of a command, one completer each.
func completeArgs(each ...completer) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= len(each) || each[len(args)] == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return offer(each[len(args)](args, word), word)
	}
}

// completeFlag completes the value of a flag.
func completeFlag(cmd *cobra.Command, flag string, values completer) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return offer(values(args, word), word)
	})
	if err != nil {
		panic(err) // the flag is not there, or has been registered twice
	}
}

// offer keeps the values that continue word. One that ends in "=", "," or "/" is to be
// continued itself.
func offer(values []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	values = slices.DeleteFunc(values, func(v string) bool { return !strings.HasPrefix(v, word) })
	directive := cobra.ShellCompDirectiveNoFileComp
	if slices.ContainsFunc(values, func(v string) bool { return strings.ContainsAny(v[len(v)-1:], "=,/") }) {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	return values, directive
}

func oneOf(values ...string) completer {
	return func([]string, string) []string { return slices.Clone(values) }
}

// state asks the running target; without an answer there is nothing to offer.
func (s *socketFlag) state() (st target.Status) {
	c, err := s.open()
	if err != nil {
		return st
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if st, err = c.Status(ctx); err != nil {
		return target.Status{}
	}
	return st
}

func (s *socketFlag) targets([]string, string) (names []string) {
	for _, t := range s.state().Targets {
		names = append(names, t.Name)
	}
	return names
}

// groupNames are groups of volumes that move between nodes.
func (s *socketFlag) groupNames([]string, string) (names []string) {
	for _, g := range s.state().Groups {
		names = append(names, g.Name)
	}
	return names
}

// volumes are those whose size resize can change.
func (s *socketFlag) volumes([]string, string) (names []string) {
	for _, v := range s.state().Volumes {
		if v.Backend != "lvm" {
			names = append(names, v.Name)
		}
	}
	return names
}

func (s *socketFlag) subsystems([]string, string) (names []string) {
	for _, x := range s.state().Subsystems {
		names = append(names, x.NQN)
	}
	return names
}

// namespaces are those of the subsystem that the first argument names.
func (s *socketFlag) namespaces(args []string, _ string) (ids []string) {
	for _, n := range s.namespacesOf(args[0]) {
		if n.Error == "" {
			ids = append(ids, strconv.Itoa(int(n.NSID)))
		}
	}
	return ids
}

// freeNSID is the lowest identifier that the subsystem has not given to a namespace.
func (s *socketFlag) freeNSID(args []string, _ string) []string {
	id := uint32(1)
	for _, n := range s.namespacesOf(args[0]) { // ascending
		if n.NSID == id {
			id++
		}
	}
	return []string{strconv.Itoa(int(id))}
}

func (s *socketFlag) namespacesOf(nqn string) []target.NamespaceStatus {
	for _, x := range s.state().Subsystems {
		if x.NQN == nqn {
			return x.Namespaces
		}
	}
	return nil
}

func (s *socketFlag) sessions([]string, string) (ids []string) {
	for _, x := range s.state().Sessions {
		ids = append(ids, strconv.Itoa(int(x.TSIH)))
	}
	return ids
}

// controllers are the identifiers that --controller takes.
func (s *socketFlag) controllers([]string, string) []string {
	return namedByID(s.state().Controllers)
}

// namedByID are the identifiers of which there is one controller: each subsystem has its own.
func namedByID(all []target.ControllerStatus) (ids []string) {
	of := map[uint16]int{}
	for _, x := range all {
		of[x.ID]++
	}
	for _, x := range all {
		if of[x.ID] == 1 {
			ids = append(ids, strconv.Itoa(int(x.ID)))
		}
	}
	return ids
}

// initiators are those with a session with the target that the first argument names.
func (s *socketFlag) initiators(args []string, _ string) (names []string) {
	for _, x := range s.state().Sessions {
		if x.Target == args[0] && !slices.Contains(names, x.Initiator) {
			names = append(names, x.Initiator)
		}
	}
	return names
}

// luns are those of the target that the first argument names.
func (s *socketFlag) luns(args []string, _ string) (numbers []string) {
	for _, l := range s.lunsOf(args[0]) {
		if l.Error == "" {
			numbers = append(numbers, strconv.Itoa(int(l.LUN)))
		}
	}
	return numbers
}

// freeLUN is the lowest number that the target has not given to a LUN.
func (s *socketFlag) freeLUN(args []string, _ string) []string {
	n := 0
	for _, l := range s.lunsOf(args[0]) { // ascending
		if int(l.LUN) == n {
			n++
		}
	}
	return []string{strconv.Itoa(n)}
}

func (s *socketFlag) lunsOf(iqn string) []target.LUNStatus {
	for _, t := range s.state().Targets {
		if t.Name == iqn {
			return t.LUNs
		}
	}
	return nil
}

// groups are the portal groups through which the LUN of the arguments is reached.
func (s *socketFlag) groups(args []string, _ string) (groups []string) {
	for _, l := range s.lunsOf(args[0]) {
		if strconv.Itoa(int(l.LUN)) != args[1] {
			continue
		}
		for g := range l.Access {
			groups = append(groups, strconv.Itoa(int(g)))
		}
	}
	slices.Sort(groups)
	return groups
}

// exportOptions are the words behind the commas of an --export, as exportVolume takes them.
var exportOptions = []string{"size=", "block=512", "block=4096", "phys=4096", "ro", "writethrough", "prealloc", "hugepages", "placement=direct", "placement=verified"}

// exports completes NAME=VOLUME,option,….
func exports(_ []string, word string) (all []string) {
	name, spec, ok := strings.Cut(word, "=")
	if !ok || name == "" {
		return nil
	}
	if i := strings.LastIndexByte(spec, ','); i >= 0 {
		return exportOptionsAfter(name + "=" + spec[:i+1])
	}
	for _, kind := range []string{"memory", "null"} {
		all = append(all, name+"="+kind+",size=")
	}
	// Files and devices, which the shell does not look for behind the "=".
	kind, path := "", spec
	for _, k := range []string{"file:", "raw:"} {
		if p, ok := strings.CutPrefix(spec, k); ok {
			kind, path = k, p
		}
	}
	dir, _ := filepath.Split(path)
	entries, err := os.ReadDir(filepath.Join(dir, "."))
	if err != nil {
		return all
	}
	for _, e := range entries {
		if e.Type()&(os.ModeSocket|os.ModeNamedPipe|os.ModeCharDevice) != 0 {
			continue
		}
		end := ""
		if e.IsDir() {
			end = "/"
		}
		all = append(all, name+"="+kind+dir+e.Name()+end)
	}
	return all
}

// exportOptionsAfter are the options that have not been given before.
func exportOptionsAfter(before string) (all []string) {
	for _, o := range exportOptions {
		key, _, _ := strings.Cut(o, "=")
		given := slices.ContainsFunc(strings.Split(before, ","), func(w string) bool { k, _, _ := strings.Cut(w, "="); return k == key })
		if !given {
			all = append(all, before+o)
		}
	}
	return all
}
