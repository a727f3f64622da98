package main

import (
	"slices"

	"github.com/spf13/cobra"

	"softiser/initiator/attach"
	"softiser/initiator/blockio"
	callerr "softiser/internal/usage"
)

// Shell completion.

// volumes are how the URL of a volume begins.
var volumes = callerr.Values{Words: []string{"iser://", "iser+roce://", "iscsi://", "nvme+tcp://", "nvme+rdma://", "nvme+roce://"}}

// completed is what the shell offers for flags, whatever command they belong to.
var completed = map[string]callerr.Values{
	// connections and sessions
	"initiator-name": {}, "isid": {}, "local-address": {}, "hostnqn": {}, "hostid": {},
	"chap-user": {}, "chap-target-user": {}, "tls-name": {},
	"chap-secret-file": {Files: true}, "chap-target-secret-file": {Files: true},
	"chap-algs":          {Words: []string{"sha3-256", "sha-256", "sha1", "md5"}, List: true},
	"dhchap-secret":      {Files: true}, // or the key itself
	"dhchap-hashes":      {Words: []string{"sha256", "sha384", "sha512"}, List: true},
	"dhchap-dhgroups":    {Words: []string{"null", "ffdhe2048", "ffdhe3072", "ffdhe4096", "ffdhe6144", "ffdhe8192"}, List: true},
	"dhchap-ctrl-secret": {Files: true},
	"tls-ca":             {Files: true}, "tls-cert": {Files: true}, "tls-key": {Files: true},
	"crc":           {Words: []string{"required", "offered", "off"}},
	"busy-poll":     {Words: []string{"auto", "0"}},
	"zerocopy":      {Words: []string{"auto", "on", "off"}},
	"congestion":    {Words: []string{"auto", "host", "reno", "cubic"}},
	"path-policy":   {Words: []string{"round-robin", "queue-depth"}},
	"path-fence":    {Words: []string{"session", "reset", "none"}},
	"no-path-retry": {Words: []string{"fail", "queue"}}, // or how long
	// attach
	"device":      {Words: []string{"auto", "none", "/dev/nbd", "ublk", "/dev/ublkb"}},
	"socket":      {Files: true},
	"tcp":         {Words: []string{"127.0.0.1:10809"}},
	"export-name": {},
	"pidfile":     {Files: true}, "log": {Files: true}, "binary": {Files: true},
	"run-dir": {Folders: true},
	// reserve
	"type": {Words: blockio.ReservationTypes()},
	// bench
	"uri": volumes, "filename": volumes,
	"rw": {Words: loads}, "readwrite": {Words: loads},
	"rw-sequencer":        {Words: []string{"sequential", "identical"}},
	"random-distribution": {Words: []string{"random", "zipf:", "pareto:", "zoned:"}},
	"dedupe-mode":         {Words: []string{"repeat", "working_set"}},
	"exit-what":           {Words: []string{"group", "stonewall", "all"}},
	"ss":                  {Words: criteria}, "steadystate": {Words: criteria},
	"output-format": {Words: []string{"normal", "json", "json+", "terse"}, List: true},
	"output":        {Files: true}, "plot": {Endings: []string{"svg"}},
	"status-interval": {}, "section": {},
	"eta": {Words: []string{"auto", "always", "never"}},
	// doctor
	"bundle": {Files: true},
	// rdma
	"provider":    {Words: []string{"iwarp", "roce"}},
	"ib-dev":      {Words: []string{"iwarp", "roce"}},
	"atomic_type": {Words: []string{"CMP_AND_SWAP", "FETCH_AND_ADD"}},
	"connection":  {Words: []string{"RC", "UC", "UD"}},
	"multicast":   {}, "address": {}, "bind": {}, "bind_source_ip": {}, "server": {}, "source": {},
}

var (
	loads    = []string{"read", "write", "randread", "randwrite", "rw", "randrw", "trim", "randtrim"}
	criteria = []string{"iops:", "bw:", "iops_slope:", "bw_slope:"}
)

// complete has the shell offer values of flags and arguments.
func complete(root *cobra.Command) {
	callerr.Complete(root, completed)
	completeArguments(root)
}

// completeArguments has every command say what its arguments are.
func completeArguments(c *cobra.Command) {
	for _, sub := range c.Commands() {
		completeArguments(sub)
	}
	if c.ValidArgsFunction != nil || c.HasSubCommands() {
		return
	}
	file := callerr.Values{Files: true}
	switch path := c.CommandPath()[len(c.Root().Name()):]; {
	case path == " attach":
		c.ValidArgsFunction = callerr.Arguments(false, callerr.Values{Ask: attachments})
	case path == " bench":
		c.ValidArgsFunction = callerr.Arguments(true, callerr.Values{Words: volumes.Words, Files: true}, file)
	case slices.Contains([]string{" read", " write", " verify"}, path):
		c.ValidArgsFunction = callerr.Arguments(false, volumes, file)
	case path == " discover" || path == " info" || c.Parent().Name() == "reserve":
		c.ValidArgsFunction = callerr.Arguments(false, volumes)
	default: // a server's name, or none at all
		c.ValidArgsFunction = callerr.Arguments(false)
	}
}

// attachments are what --detach and --upgrade take; else attach wants a volume.
func attachments(c *cobra.Command, _ []string, word string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	detach, _ := c.Flags().GetBool("detach")
	upgrade, _ := c.Flags().GetBool("upgrade")
	if !detach && !upgrade {
		return callerr.Arguments(false, volumes)(c, nil, word)
	}
	dir, _ := c.Flags().GetString("run-dir")
	all, err := attach.List(dir)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var offers callerr.Values
	for _, r := range all {
		for _, name := range []string{r.Device, r.Socket, r.URL} {
			if name != "" {
				offers.Words = append(offers.Words, name)
			}
		}
	}
	return callerr.Arguments(false, offers)(c, nil, word)
}
