package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// fenceMetadata describes the agent to pacemaker.
const fenceMetadata = `<?xml version="1.0" ?>
<resource-agent name="fence_switch" shortdesc="power switch of the test cluster">
<longdesc>Turns nodes of the test cluster off and on by the program that runs them.</longdesc>
<parameters>
<parameter name="action" unique="0" required="1"><getopt mixed="-o"/><content type="string" default="reboot"/><shortdesc lang="en">action</shortdesc></parameter>
<parameter name="port" unique="0" required="0"><getopt mixed="-n"/><content type="string"/><shortdesc lang="en">node</shortdesc></parameter>
<parameter name="socket" unique="1" required="0"><getopt mixed="-s"/><content type="string"/><shortdesc lang="en">socket of the switch</shortdesc></parameter>
</parameters>
<actions><action name="on" automatic="0"/><action name="off"/><action name="reboot"/><action name="status"/><action name="list"/><action name="monitor"/><action name="metadata"/></actions>
</resource-agent>
`

// fence is the fence agent, as pacemaker runs it: arguments come as name=value lines on
// standard input. An action that is not said is none: a pipe that is late must not cut power.
func fence(args []string, in io.Reader, out io.Writer) (status int) {
	socket, action, port := "", "", ""
	if len(args) > 0 {
		socket, args = args[0], args[1:]
	}
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, "--action="); ok {
			action = v
		} else if v, ok := strings.CutPrefix(a, "-o"); ok {
			action = v
		}
	}
	for lines := bufio.NewScanner(in); action != "metadata" && lines.Scan(); {
		k, v, _ := strings.Cut(strings.TrimSpace(lines.Text()), "=")
		switch k {
		case "action":
			action = v
		case "port", "plug":
			port = v
		case "nodename":
			if port == "" {
				port = v
			}
		}
	}
	switch action {
	case "metadata":
		fmt.Fprint(out, fenceMetadata)
		return 0
	case "monitor", "list", "on", "off", "reboot", "status":
	default:
		fmt.Fprintf(os.Stderr, "fence_switch: action %q\n", action)
		return 1
	}
	answer, err := askSwitch(socket, action+" "+port)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "fence_switch:", err)
		return 1
	case answer == "off":
		return 2 // of status
	case answer == "refused":
		return 1
	}
	fmt.Fprint(out, strings.ReplaceAll(answer, " ", "\n"))
	return 0
}

// askSwitch has the switch do something, and returns its answer: one line.
func askSwitch(socket, request string) (string, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := fmt.Fprintln(c, request); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}
