package scenario

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/units"
)

var (
	hostName  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`) // a DNS label, as in certificates
	plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
)

const (
	hostNameForm  = `use small letters, digits and dashes, and not "localhost"`
	plainNameForm = "use letters, digits, dots, dashes and underscores"

	congestionForm = "use a name the kernel knows, such as cubic, reno or bbr"

	maxRepetitions = 10000

	minMTU      = 1280 // IPv6 needs it (RFC 8200, section 5)
	maxMTU      = 65521
	maxRate     = units.Rate(1e12)
	maxDelay    = units.Duration(time.Minute)
	maxSubflows = 8 // the most that the kernel allows for one connection

	maxBurstLength = 1_000_000

	maxPower = 1_000_000 // mW, of a radio
)

// checker finds mistakes in a scenario that has been decoded: unknown names, values out of range, keys without effect.
type checker struct {
	*Scenario
	problems
}

func (c *checker) check() {
	if c.Schema != Schema {
		c.report("schema", "%q is not understood; this program reads %q", c.Schema, Schema)
	}
	c.name("name", c.Name, plainName, plainNameForm)
	if c.Repetitions < 1 || c.Repetitions > maxRepetitions {
		c.report("repetitions", "%d is not a number from 1 to %d", c.Repetitions, maxRepetitions)
	}
	if c.Seed < 0 {
		c.report("seed", "%d is negative; use a number from 1 up", c.Seed)
	}
	c.name("congestion_control", c.Congestion, plainName, congestionForm)
	c.hosts()
	c.links()
	if c.Varied != "" {
		c.known("varied", c.Varied, "link", c.linkNames())
	}
	c.variants()
	c.Variants = append(c.Variants, c.sweeps()...) // expectations may name them
	c.workload()
	c.procedures()
	c.events()
	c.expectations()
}

func (c *checker) hosts() {
	seen := map[string]bool{}
	for i, h := range c.Hosts {
		path := fmt.Sprintf("host[%d]", i)
		c.unique(path+".name", h.Name, seen)
		(&hostChecker{checker: c, host: h, path: path}).check()
	}
	if len(c.Hosts) < 2 {
		c.report("host", "a network needs at least two hosts; declare each with [[host]]")
	}
}

func (c *checker) links() {
	hosts, seen := c.hostNames(), map[string]bool{}
	for i, l := range c.Links {
		path := fmt.Sprintf("link[%d]", i)
		c.name(path+".name", l.Name, plainName, plainNameForm)
		c.unique(path+".name", l.Name, seen)
		okA := c.known(path+".a", l.A, "host", hosts)
		okB := c.known(path+".b", l.B, "host", hosts)
		if okA && okB && l.A == l.B {
			c.report(path+".b", "both ends are %q; a link joins two hosts", l.A)
		}
		if l.Cost < 1 || l.Cost > 1e6 {
			c.report(path+".cost", "%d is not a number from 1 to 1000000", l.Cost)
		}
		if l.MTU < minMTU || l.MTU > maxMTU {
			c.report(path+".mtu", "%d is not a number from %d to %d", l.MTU, minMTU, maxMTU)
		}
		c.shape(path, l.Shape)
		if l.Radio != nil {
			c.radio(path+".radio", *l.Radio)
		}
	}
	if len(c.Links) == 0 {
		c.report("link", "a network needs at least one link; declare each with [[link]]")
	}
}

func (c *checker) radio(path string, r Radio) {
	if r.Wake > maxDelay {
		c.report(path+".wake", "%v is too long; use at most %v", r.Wake, maxDelay)
	}
	switch {
	case r.Sleep == 0:
		c.report(path+".sleep", `is missing; say how long after its last packet the radio is on, such as sleep = "5s"`)
	case r.Sleep > maxDelay:
		c.report(path+".sleep", "%v is too long; use at most %v", r.Sleep, maxDelay)
	}
	for _, p := range []struct {
		key   string
		value int
	}{{"power", r.Power}, {"low", r.Low}} {
		if p.value < 0 || p.value > maxPower {
			c.report(path+"."+p.key, "%d is not a number of milliwatts from 0 to %d", p.value, maxPower)
		}
	}
}

// shape reports whether a link's shape is valid for each direction.
func (c *checker) shape(path string, s Shape) bool {
	ab, ba := s.Directions()
	for _, p := range []Params{ab, ba} {
		before := 0
		problem := func(key, format string, args ...any) {
			before++
			c.report(path+"."+key, format, args...)
		}
		if p.Rate != nil && *p.Rate > maxRate {
			problem("rate", "%v is too much; use at most %v", *p.Rate, maxRate)
		}
		if p.Delay != nil && *p.Delay > maxDelay {
			problem("delay", "%v is too long; use at most %v", *p.Delay, maxDelay)
		}
		if p.Jitter != nil && (p.Delay == nil && *p.Jitter > 0 || p.Delay != nil && *p.Jitter > *p.Delay) {
			problem("jitter", "%v is more than the delay it varies; use at most that", *p.Jitter)
		}
		if p.BurstLength != nil && (*p.BurstLength < 1 || *p.BurstLength > maxBurstLength) {
			problem("burst_length", "%d is not a number of packets from 1 to %d", *p.BurstLength, maxBurstLength)
		}
		if p.ReorderBy != nil && *p.ReorderBy > maxDelay {
			problem("reorder_by", "%v is too long; use at most %v", *p.ReorderBy, maxDelay)
		}
		if before > 0 {
			return false // the other direction has the same problem
		}
	}
	return true
}

// hostNames returns the hosts' names without repetitions.
func (c *checker) hostNames() []string {
	var names []string
	for _, h := range c.Hosts {
		if hostName.MatchString(h.Name) && !slices.Contains(names, h.Name) {
			names = append(names, h.Name)
		}
	}
	return names
}

func (c *checker) linkNames() []string {
	var names []string
	for _, l := range c.Links {
		if !slices.Contains(names, l.Name) {
			names = append(names, l.Name)
		}
	}
	return names
}

func (c *checker) variants() {
	seen := map[string]bool{Base: true}
	for i, v := range c.Variants {
		path := fmt.Sprintf("variant[%d]", i)
		c.name(path+".name", v.Name, plainName, plainNameForm)
		if v.Name == Base {
			c.report(path+".name", "%q is the network as declared; call this one something else", Base)
		} else {
			c.unique(path+".name", v.Name, seen)
		}
		for j, change := range v.Changes {
			c.change(fmt.Sprintf("%s.change[%d]", path, j), change)
		}
		c.variantKinds(path, v)
		c.variantHosts(path, v)
		if len(v.Changes) == 0 && v.Workload == (WorkloadChange{}) && len(v.Kinds) == 0 && len(v.Hosts) == 0 {
			c.report(path, "changes nothing; say what with [[variant.change]], [[variant.host]], [variant.workload] or kinds")
		}
	}
}

// change checks a change together with the link that it changes.
func (c *checker) change(path string, change Change) {
	if !c.known(path+".link", change.Link, "link", c.linkNames()) {
		return
	}
	if change.Shape == (Shape{}) {
		c.report(path, "changes nothing of link %q; set one of %s", change.Link, strings.Join(PropertyKeys(), ", "))
	}
	link, _ := c.Link(change.Link)
	c.shape(path, change.Shape.Over(link.Shape))
}
