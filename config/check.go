package config

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxLUN is the highest LUN that flat addressing carries (SAM-5 §4.7).
const MaxLUN = 16383

// check finds what the shape alone does not show: missing and contradicting
// values, duplicates, references to nothing.
func (c *Config) check(r *report) {
	c.checkPortals(r)
	c.checkVolumes(r)
	c.checkTargets(r)
	c.checkSubsystems(r)
	c.checkOneAccess(r)
	c.checkDiscovery(r)
	c.checkHA(r)
	c.checkReached(r)
	for _, a := range c.auths() {
		checkAuth(r, a.key, a.auth)
	}
	c.checkISCSI(r)
	c.checkTransport(r)
	c.checkLimits(r)
	checkRange(r, "limits.workers", c.Limits.Workers, 1, 1024)
	checkSize(r, "limits.staging_memory", c.Limits.StagingMemory, 16<<20, 1<<40)
	c.Admin.check(r, c.Portals)
	oneOf(r, "logging.level", c.Logging.Level, "debug", "info", "warn", "error")
	oneOf(r, "logging.format", c.Logging.Format, "console", "json")
}

// check checks where the admin socket and, beside the portals, the metrics are.
func (a *Admin) check(r *report, portals []Portal) {
	if a.Metrics != "" {
		checkHostPort(r, "admin.metrics", a.Metrics)
		if i := slices.IndexFunc(portals, func(p Portal) bool {
			return !p.RoCE() && (canonical(p.Listen) == canonical(a.Metrics) && !chosen(a.Metrics) || overlap(p.Listen, a.Metrics))
		}); i >= 0 {
			r.add("admin.metrics", "%s is already the address of portals[%d], %s", a.Metrics, i, portals[i].Listen)
		}
	}
	if n := len(a.Socket); n > maxSocketPath {
		r.add("admin.socket", "the path has %d bytes; that of a socket has at most %d", n, maxSocketPath)
	}
}

// CheckPortals finds what is wrong with the portals alone, for those who have
// changed them since the configuration was loaded.
func (c *Config) CheckPortals() error { return checked(c.checkPortals) }

// Check is CheckPortals for the admin socket and the metrics.
func (a *Admin) Check(portals []Portal) error {
	return checked(func(r *report) { a.check(r, portals) })
}

// checked is what a check finds.
func checked(check func(*report)) error {
	var r report
	check(&r)
	if len(r.found) > 0 {
		return r.found
	}
	return nil
}

// checkPortals checks addresses, and that no two portals listen on one.
func (c *Config) checkPortals(r *report) {
	seen := map[string]string{}
	for i, p := range c.Portals {
		key := fmt.Sprintf("portals[%d]", i)
		if p.Listen == "" {
			r.add(key+".listen", "missing; expected host:port, for example 127.0.0.1:3260 or \"[::]:3260\"")
			continue
		}
		checkHostPort(r, key+".listen", p.address())
		at := canonical(p.address())
		if p.RoCE() {
			checkRoCE(r, key, &p)
			at = roceScheme + at
		}
		if first, ok := seen[at]; ok && !chosen(at) {
			r.add(key+".listen", "%s is already the address of %s", p.Listen, first)
		}
		seen[at] = key
		if first := c.coveredBy(i); first != "" {
			r.add(key+".listen", "%s overlaps with %s: an address of all interfaces leaves none for others on its port", p.Listen, first)
		}
		checkRange(r, key+".group", p.Group, 1, 65535)
		if p.Advertise != "" {
			checkTold(r, key+".advertise", p.Advertise)
		}
		for j, s := range p.Protocols {
			known := Protocols
			if p.RoCE() {
				known = roceProtocols
			}
			oneOf(r, fmt.Sprintf("%s.protocols[%d]", key, j), s, known...)
		}
		checkBuffer(r, key+".send_buffer", p.SendBuffer)
		checkBuffer(r, key+".recv_buffer", p.RecvBuffer)
	}
}

// checkRoCE checks what a portal for RoCE cannot do.
func checkRoCE(r *report, key string, p *Portal) {
	host, _, err := net.SplitHostPort(p.address())
	if ip, ok := ipOf(host); err == nil && (host == "" || host == "*" || ok && (ip.IsUnspecified() || ip.IsMulticast())) {
		r.add(key+".listen", "%s is no address of one interface, and the checksum of RoCE covers the address; make a portal for each", p.Listen)
	}
	for name, set := range map[string]bool{
		"freebind": p.Freebind, "congestion": p.Congestion != "", "send_buffer": p.SendBuffer != 0, "recv_buffer": p.RecvBuffer != 0,
	} {
		if set {
			r.add(key+"."+name, "is for TCP; a portal for RoCE (%s) does not have it", p.Listen)
		}
	}
}

// checkReached finds targets and subsystems that no portal speaks for.
func (c *Config) checkReached(r *report) {
	spoken := func(protocols ...string) bool {
		return len(c.Portals) == 0 || slices.ContainsFunc(c.Portals, func(p Portal) bool {
			return slices.ContainsFunc(protocols, p.Speaks)
		})
	}
	if len(c.Targets) > 0 && !spoken("iscsi", "iser") {
		r.add("targets", "no portal speaks iscsi or iser; nobody can reach them: see portals[].protocols")
	}
	if len(c.Subsystems) > 0 && !spoken("nvme-tcp", "nvme-rdma") {
		r.add("subsystems", "no portal speaks nvme-tcp or nvme-rdma; nobody can reach them: see portals[].protocols")
	}
}

// coveredBy names the portal before i that has the same port on all interfaces,
// or that portal i, on all interfaces, would share its port with.
func (c *Config) coveredBy(i int) string {
	if c.Portals[i].RoCE() {
		return ""
	}
	for _, p := range c.Portals[:i] {
		if !p.RoCE() && canonical(p.Listen) != canonical(c.Portals[i].Listen) && overlap(p.Listen, c.Portals[i].Listen) {
			return p.Listen
		}
	}
	return ""
}

// canonical is an address to listen at in the one spelling that stands for all of its own.
func canonical(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil {
		return addr
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	} else if host = strings.ToLower(host); host == "localhost" {
		host = "127.0.0.1" // of its addresses the one that package net listens at
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10))
}

// chosen reports whether the system chooses the port, another one each time.
func chosen(addr string) bool { return strings.HasSuffix(canonical(addr), ":0") }

// overlap reports whether two addresses have one port, of which one of them is on all interfaces.
func overlap(a, b string) bool {
	all := func(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
	x, port, err := net.SplitHostPort(canonical(a))
	if err != nil || port == "0" {
		return false
	}
	y, other, err := net.SplitHostPort(canonical(b))
	return err == nil && other == port && (all(x) || all(y))
}

// checkVolumes checks each volume, and that no two have one name, store or identity.
func (c *Config) checkVolumes(r *report) {
	names, paths, wwids, lvs := map[string]string{}, map[string]string{}, map[string]string{}, map[string]string{}
	for i := range c.Volumes {
		v, key := &c.Volumes[i], fmt.Sprintf("volumes[%d]", i)
		if v.Name == "" {
			r.add(key+".name", "missing; LUNs refer to the volume by it")
		} else if err := CheckVolumeName(v.Name); err != nil {
			r.add(key+".name", "%v", err)
		} else if first, ok := names[v.Name]; ok {
			r.add(key+".name", "%q is already the name of %s", v.Name, first)
		}
		names[v.Name] = key
		if p := v.Path; p != "" {
			if first, ok := paths[path.Clean(p)]; ok {
				r.add(key+".path", "%s already backs %s; two volumes on one file would overwrite each other", p, first)
			}
			paths[path.Clean(p)] = key
		}
		if v.VG != "" && v.LV != "" {
			lv := v.VG + "/" + v.LV
			if first, ok := lvs[lv]; ok {
				r.add(key+".lv", "%s already backs %s; two volumes on one logical volume would overwrite each other", lv, first)
			}
			lvs[lv] = key
		}
		if v.WWID != "" {
			id := strings.ToLower(strings.TrimPrefix(v.WWID, "naa."))
			if b, err := hex.DecodeString(id); err != nil || len(b) != 16 || b[0]>>4 != 6 {
				r.add(key+".wwid", "%q is no NAA 6 identifier; expected 32 hex digits that start with 6", v.WWID)
			} else if first, ok := wwids[id]; ok {
				r.add(key+".wwid", "%s is already the identifier of %s; initiators would take the two volumes for one", v.WWID, first)
			}
			wwids[id] = key
		}
		c.checkVolume(r, key, v)
	}
	c.checkSnapshotNames(r)
}

// checkVolume checks the fields of one volume against its type: what it needs, and what
// it cannot have.
func (c *Config) checkVolume(r *report, key string, v *Volume) {
	checkStore(r, key, v)
	checkGeometry(r, key, v)
	checkSettings(r, key, v)
	checkQoS(r, key+".qos", &v.QoS)
	checkSnapshots(r, key+".snapshots", v)
	checkFault(r, key+".fault", &v.Fault)
}

// checkStore checks what says where a volume is kept.
func checkStore(r *report, key string, v *Volume) {
	switch v.Type {
	case VolumeFile:
		need(r, key+".path", v.Path, "the file that holds the volume")
		if v.Create && v.Size == 0 {
			r.add(key+".size", "missing; a file that is created needs a size such as 10GiB")
		}
	case VolumeRaw:
		need(r, key+".path", v.Path, "the block device, for example /dev/sdb")
	case VolumeMemory, VolumeNull:
		if v.Size == 0 {
			r.add(key+".size", "missing; a %s volume needs a size such as 1GiB", v.Type)
		}
		if v.Path != "" {
			r.add(key+".path", "a %s volume has no path; remove it, or use type: file", v.Type)
		}
	case VolumeLVM:
		need(r, key+".vg", v.VG, "the volume group")
		need(r, key+".lv", v.LV, "the logical volume")
		if len(v.Devices) == 0 {
			r.add(key+".devices", "missing; list the files or devices that are the group's physical volumes")
		}
		if v.Create && v.Size == 0 {
			r.add(key+".size", "missing; a logical volume that is created needs a size such as 10GiB")
		}
		checkLayout(r, key, v)
		checkOwn(r, key, v)
	case "":
		r.add(key+".type", "missing; expected file, raw, memory, \"null\" (in quotes: YAML takes the bare word for nothing) or lvm")
	default:
		r.add(key+".type", "%q is no kind of volume; expected file, raw, memory, null or lvm", v.Type)
	}
	if v.Type != VolumeLVM && (v.VG != "" || v.LV != "" || len(v.Devices) > 0 || v.hasLayout()) {
		r.add(key, "vg, lv, devices, stripes, stripe_size, pool, pool_size and error_when_full belong to type: lvm")
	}
}

// checkGeometry checks the size of a volume and of its blocks.
func checkGeometry(r *report, key string, v *Volume) {
	if v.BlockSize != 512 && v.BlockSize != 4096 {
		r.add(key+".block_size", "%s is not a block size we serve; expected 512B or 4096B", v.BlockSize)
	} else {
		if p := v.PhysBlockSize; p < v.BlockSize || p > 1<<20 || p&(p-1) != 0 {
			r.add(key+".phys_block_size", "%s must be a power of two between the block size (%s) and 1MiB", p, v.BlockSize)
		}
		if v.Size%v.BlockSize != 0 {
			r.add(key+".size", "%d bytes are not a whole number of blocks of %s", int64(v.Size), v.BlockSize)
		}
	}
	if v.Size < 0 {
		r.add(key+".size", "is negative")
	}
}

// checkSettings checks settings that not every volume can have.
func checkSettings(r *report, key string, v *Volume) {
	oneOf(r, key+".placement", v.Placement, "direct", "verified")
	if v.Placement == "verified" && v.ReadOnly {
		r.add(key+".placement", "is about WRITEs, which a read-only volume refuses")
	}
	if v.WriteThrough && (v.Type == VolumeMemory || v.Type == VolumeNull) {
		r.add(key+".write_through", "nothing in a %s volume survives the process, so nothing can be written through", v.Type)
	}
	if v.Preallocate && v.Type != VolumeFile {
		r.add(key+".preallocate", "only files can be preallocated, not a %s volume", v.Type)
	}
	if v.HugePages && v.Type != VolumeMemory && v.Type != VolumeFile {
		r.add(key+".huge_pages", "a %s volume has none; memory, and files on tmpfs, have", v.Type)
	}
	if v.Lock && v.Type == VolumeNull {
		r.add(key+".lock", "a null volume has no memory to lock")
	}
	if v.ReadOnly && v.Create {
		r.add(key+".read_only", "a volume that is created cannot be read-only")
	}
}

// checkTargets checks names, portals, LUNs and access rules, and that what they refer to
// exists.
func (c *Config) checkTargets(r *report) {
	volumes := map[string]*Volume{}
	for i := range c.Volumes {
		volumes[c.Volumes[i].Name] = &c.Volumes[i]
	}
	listen := map[string]bool{}
	for _, p := range c.Portals {
		listen[p.Listen] = true
	}
	iqns := map[string]string{}
	for i := range c.Targets {
		t, key := &c.Targets[i], fmt.Sprintf("targets[%d]", i)
		if problem := checkName(t.IQN); problem != "" {
			r.add(key+".iqn", "%s", problem)
		}
		if first, ok := iqns[t.IQN]; ok && t.IQN != "" {
			r.add(key+".iqn", "%s is already the name of %s", t.IQN, first)
		}
		iqns[t.IQN] = key
		if !shown(t.Alias) || len(t.Alias) > maxAlias {
			r.add(key+".alias", "%q: initiators take up to %d bytes, of characters that can be shown", t.Alias, maxAlias)
		}
		c.checkLUNs(r, key, t, volumes)
		for j, a := range t.Portals {
			if !listen[a] {
				r.add(fmt.Sprintf("%s.portals[%d]", key, j), "no portal listens on %q; use the listen address of a portal, letter for letter", a)
			}
		}
		if t.ALUAMode != "" {
			oneOf(r, key+".alua_mode", t.ALUAMode, "implicit", "explicit")
		}
		if t.Redirect != "" {
			checkTold(r, key+".redirect", t.Redirect)
		}
		checkACL(r, key+".acl", &t.ACL)
		c.checkBindings(r, key+".acl", t)
	}
}

// checkLUNs checks that the LUNs of a target have numbers and volumes of their own, which exist.
func (c *Config) checkLUNs(r *report, key string, t *Target, volumes map[string]*Volume) {
	luns := map[int]string{}
	served := map[string]servedLUN{} // within the target: further targets may serve it as well
	for j, l := range t.LUNs {
		lkey := fmt.Sprintf("%s.luns[%d]", key, j)
		checkRange(r, lkey+".lun", l.LUN, 0, MaxLUN)
		if first, ok := luns[l.LUN]; ok {
			r.add(lkey+".lun", "LUN %d of %s is already %s", l.LUN, t.IQN, first)
		}
		luns[l.LUN] = lkey
		if l.Volume == "" {
			r.add(lkey+".volume", "missing; name one of the volumes")
		} else if v := volumes[l.Volume]; v == nil {
			r.add(lkey+".volume", "there is no volume %q%s", l.Volume, didYouMean(l.Volume, names(c.Volumes)))
		} else {
			now := servedLUN{lkey, v.ReadOnly || l.ReadOnly}
			first, twice := served[l.Volume]
			if twice && !(first.readOnly && now.readOnly) {
				r.add(lkey+".volume", "%s is served as %s already, and a volume that can be written has one LUN in a target: initiators would take the two for paths through one port. "+
					"For several paths give the target several portals, or serve the volume by further targets; for readers write read_only: true at every LUN of the volume", l.Volume, first.key)
			}
			if !twice || !now.readOnly {
				served[l.Volume] = now
			}
		}
		c.checkLUNAccess(r, lkey, &l)
	}
}

// servedLUN is a place where a target serves a volume.
type servedLUN struct {
	key      string
	readOnly bool
}

func names(vs []Volume) []string {
	var all []string
	for _, v := range vs {
		all = append(all, v.Name)
	}
	return all
}

func checkACL(r *report, key string, a *ACL) {
	for i, p := range a.Initiators {
		if _, err := path.Match(p, "x"); err != nil || p == "" {
			r.add(fmt.Sprintf("%s.initiators[%d]", key, i), "%q is no pattern; write an initiator name, with * and ? as wildcards", p)
		}
	}
	for i, n := range a.Networks {
		if _, err := netip.ParsePrefix(n); err == nil {
			continue
		}
		if _, err := netip.ParseAddr(n); err != nil {
			r.add(fmt.Sprintf("%s.networks[%d]", key, i), "%q is no network; expected 192.0.2.0/24, 2001:db8::/32 or a single address", n)
		}
	}
}

// checkBindings: names can be bound to the users of the target only, and to certificates
// where a portal asks for some.
func (c *Config) checkBindings(r *report, key string, t *Target) {
	asked := slices.ContainsFunc(c.Portals, func(p Portal) bool { return p.TLS != nil && p.TLS.ClientCA != "" })
	for i, b := range t.ACL.Bind {
		bkey := fmt.Sprintf("%s.bind[%d]", key, i)
		if _, err := path.Match(b.Initiator, "x"); err != nil || b.Initiator == "" {
			r.add(bkey+".initiator", "%q is no pattern; write an initiator name, with * and ? as wildcards", b.Initiator)
		}
		if len(b.Users) == 0 && len(b.Certificates) == 0 {
			r.add(bkey+".users", "missing; list the CHAP users who may use the name, or certificates")
		}
		if len(b.Certificates) > 0 && !asked {
			r.add(bkey+".certificates", "no portal asks for certificates (portals[].tls.client_ca), so that nobody could come in under the name")
		}
		for j, name := range b.Certificates {
			if name == "" || strings.ContainsAny(name, "*?") {
				r.add(fmt.Sprintf("%s.certificates[%d]", bkey, j), "%q is no name of a certificate; write a common name, or a URI or host of subjectAltName, as it is there (no wildcards)", name)
			}
		}
		for j, u := range b.Users {
			if !slices.ContainsFunc(t.Auth.Users, func(known User) bool { return known.Name == u }) {
				r.add(fmt.Sprintf("%s.users[%d]", bkey, j), "%q is no CHAP user of this target; auth.users lists them", u)
			}
		}
	}
}

// Algorithms are the CHAP algorithms by the names that the file uses.
var Algorithms = []string{"md5", "sha1", "sha256", "sha3-256"}

func checkAuth(r *report, key string, a *Auth) {
	oneOf(r, key+".method", a.Method, "none", "chap")
	if a.Method == "none" && (len(a.Users) > 0 || a.Mutual != nil) {
		r.add(key+".method", "users are listed, but the method is none; write method: chap")
	}
	if a.Method == "chap" && len(a.Users) == 0 {
		r.add(key+".users", "method chap needs at least one user")
	}
	for i, alg := range a.Algorithms {
		oneOf(r, fmt.Sprintf("%s.algorithms[%d]", key, i), alg, Algorithms...)
	}
	seen := map[string]bool{}
	for i, u := range a.Users {
		ukey := fmt.Sprintf("%s.users[%d].name", key, i)
		if u.Name == "" {
			r.add(ukey, "missing; it is what the initiator sends as CHAP_N")
		} else if seen[u.Name] {
			r.add(ukey, "%q is listed twice", u.Name)
		}
		seen[u.Name] = true
	}
	if a.Mutual != nil && a.Mutual.Name == "" {
		r.add(key+".mutual.name", "missing; it is what we send as CHAP_N")
	}
}

// checkISCSI checks the ranges of RFC 7143 §13, and lengths that contradict each other.
func (c *Config) checkISCSI(r *report) {
	s := &c.ISCSI
	checkRange(r, "iscsi.queue_depth", s.QueueDepth, 1, 1024)
	checkSize(r, "iscsi.first_burst", s.FirstBurst, 512, 1<<24-1)
	checkSize(r, "iscsi.max_burst", s.MaxBurst, 512, 1<<24-1)
	checkSize(r, "iscsi.max_recv_data_segment", s.MaxRecvDataSegment, 512, 1<<24-1)
	if s.FirstBurst > s.MaxBurst {
		r.add("iscsi.first_burst", "%s is more than max_burst (%s); RFC 7143 §13.14 forbids it", s.FirstBurst, s.MaxBurst)
	}
	checkRange(r, "iscsi.max_outstanding_r2t", s.MaxOutstandingR2T, 1, 65535)
	checkRange(r, "iscsi.max_connections", s.MaxConnections, 1, 32)
	checkRange(r, "iscsi.error_recovery_level", s.ErrorRecoveryLevel, 0, 2)
	for key, list := range map[string][]string{"iscsi.header_digest": s.HeaderDigest, "iscsi.data_digest": s.DataDigest} {
		if len(list) == 0 {
			r.add(key, "is empty; list none, crc32c or both, preferred first")
		}
		for _, d := range list {
			oneOf(r, key, d, "none", "crc32c")
		}
	}
	for _, d := range []struct {
		key     string
		is, max Duration
	}{
		{"iscsi.time2wait", s.Time2Wait, Duration(time.Hour)},
		{"iscsi.time2retain", s.Time2Retain, Duration(time.Hour)},
		{"iscsi.nop_interval", s.NopInterval, Duration(24 * time.Hour)},
		{"iscsi.nop_timeout", s.NopTimeout, Duration(24 * time.Hour)},
		{"iscsi.login_timeout", s.LoginTimeout, Duration(time.Hour)},
	} {
		if d.is < 0 || d.is > d.max {
			r.add(d.key, "%v is not between 0s and %v", d.is, d.max)
		}
		checkLeast(r, d.key, d.is, minTime)
	}
	for key, d := range map[string]Duration{"iscsi.time2wait": s.Time2Wait, "iscsi.time2retain": s.Time2Retain} {
		if d%Duration(time.Second) != 0 {
			r.add(key, "%v: whole seconds are negotiated", d)
		}
	}
	if s.NopTimeout == 0 {
		r.add("iscsi.nop_timeout", "cannot be 0: no ping is answered at once; nop_interval: 0s is for no pings")
	}
	if s.LoginTimeout == 0 {
		r.add("iscsi.login_timeout", "cannot be 0: a silent peer would hold a login slot for ever")
	}
}

// checkLimits: how peers share what there is for all of them.
func (c *Config) checkLimits(r *report) {
	l := &c.Limits
	checkRange(r, "limits.sessions", l.Sessions, 1, 1<<20)
	checkRange(r, "limits.sessions_per_address", l.SessionsPerAddress, 0, max(l.Sessions, 0))
	checkRange(r, "limits.reserved_sessions", l.ReservedSessions, 0, max(l.Sessions-1, 0))
	if d := l.DiscoveryAge.D(); d < 0 {
		r.add("limits.discovery_age", "cannot be negative; 0s means that discovery sessions may stay")
	}
	checkLeast(r, "limits.discovery_age", l.DiscoveryAge, minSession)
	checkRange(r, "limits.pending_logins", l.PendingLogins, 1, 1<<16)
	checkRange(r, "limits.pending_per_address", l.PendingPerAddress, 0, max(l.PendingLogins, 0))
}

func (c *Config) checkTransport(r *report) {
	t := &c.Transport
	oneOf(r, "transport.crc", t.CRC, "required", "offered", "off")
	oneOf(r, "transport.zerocopy", t.Zerocopy, "auto", "on", "off")
	oneOf(r, "transport.fpdu", t.FPDU, "auto", "mss", "big")
	if us, err := strconv.Atoi(t.BusyPoll); t.BusyPoll != "auto" && (err != nil || us < 0 || us > 10_000) {
		r.add("transport.busy_poll_us", "%q is neither auto nor a number of microseconds from 0 (never) to 10000", t.BusyPoll)
	}
	checkRange(r, "transport.ird", t.IRD, 1, 256)
	checkRange(r, "transport.ord", t.ORD, 1, 256)
}

func need(r *report, key, value, what string) {
	if value == "" {
		r.add(key, "missing; it names %s", what)
	}
}

func oneOf(r *report, key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		r.add(key, "%q is not one of %s", value, strings.Join(allowed, ", "))
	}
}

// maxSocketPath is what sockaddr_un has room for, less the zero at the end.
const maxSocketPath = 107
