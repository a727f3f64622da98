package connflags

import (
	"fmt"
	"path"
	"strings"

	"softiser/initiator"
	"softiser/initiator/multipath"
	"softiser/initiator/nvmf"
)

// way is one path to a volume: that of a session, or of an NVMe host.
type way struct {
	lun  *initiator.Config
	host *nvmf.Config
}

func parseWay(url string) (way, error) {
	if nvmf.IsURL(url) {
		c, err := nvmf.ParseURL(url)
		return way{host: &c}, err
	}
	c, err := initiator.ParseURL(url)
	return way{lun: &c}, err
}

func (w way) url() string {
	if w.host != nil {
		return w.host.URL()
	}
	return w.lun.URL()
}

// title names the volume in a few words.
func (w way) title() string {
	if w.host != nil {
		return fmt.Sprintf("%s namespace %d", w.host.Subsystem, w.host.NSID)
	}
	return fmt.Sprintf("%s LUN %d", path.Base(w.lun.TargetName), w.lun.LUN)
}

func (w way) dialer() multipath.Dialer {
	if w.host != nil {
		return multipath.Namespace(*w.host)
	}
	return multipath.LUN(*w.lun)
}

// Paths splits what stands for a volume into the URLs of its paths, which commas separate.
func Paths(url string) []string {
	var paths []string
	for rest := url; ; {
		i := strings.Index(rest, "://")
		if i < 0 {
			return append(paths, url)
		}
		// The next path begins behind the last comma before the next scheme; lists in
		// options contain commas, too.
		next := strings.Index(rest[i+3:], "://")
		cut := -1
		if next >= 0 {
			cut = strings.LastIndexByte(rest[:i+3+next], ',')
		}
		if cut < 0 {
			return append(paths, rest)
		}
		paths, rest, url = append(paths, rest[:cut]), rest[cut+1:], rest[cut+1:]
	}
}

// Names returns the URL of a volume without secrets; what is no URL stays as it is.
func Names(url string) string {
	var names []string
	for _, p := range Paths(url) {
		w, err := parseWay(p)
		if err != nil {
			return url
		}
		names = append(names, w.url())
	}
	return strings.Join(names, ",")
}

// Title names the volume at url in a few words.
func Title(url string) string {
	w, err := parseWay(Paths(url)[0])
	if err != nil {
		return url
	}
	return w.title()
}
