package scenario

import (
	"fmt"
	"slices"
	"strings"
)

func (c *checker) events() {
	for i, e := range c.Events {
		path := fmt.Sprintf("event[%d]", i)
		if d := c.shortest(); d > 0 && e.At+e.Gap >= d {
			c.report(path+".at", "%v is not within the workload's duration, %v", e.At+e.Gap, d)
		}
		ofLink := e.Link != "" || e.Down != nil || e.Shape != Shape{}
		ofHost := e.hostKeys()
		switch {
		case e.Kill != "" && (ofLink || e.Host != "" || len(ofHost) > 0):
			c.report(path, "says two things; use one event for kill and another for the rest")
		case e.Kill != "":
			if c.known(path+".kill", e.Kill, "host", c.hostNames()) && (e.Kill == c.Workload.Client || e.Kill == c.Workload.Server) {
				c.report(path+".kill", "%q runs the workload; kill another host", e.Kill)
			}
		case ofLink && (e.Host != "" || len(ofHost) > 0):
			c.report(path, "says two things; use one event for the link and another for the host")
		case e.Host != "" || len(ofHost) > 0:
			c.hostEvent(path, e, ofHost)
		case e.Down != nil && e.Shape == Shape{}:
			c.known(path+".link", e.Link, "link", c.linkNames())
		default:
			c.change(path, e.Change)
		}
	}
}

// hostKeys returns the keys of the event that concern a host.
func (e Event) hostKeys() []string {
	var keys []string
	for _, key := range []struct {
		name string
		set  bool
	}{{"agent", e.Agent != ""}, {"drop_tcp", e.DropTCP != nil}, {"renumber", e.Renumber != ""}} {
		if key.set {
			keys = append(keys, key.name)
		}
	}
	return keys
}

func (c *checker) hostEvent(path string, e Event, keys []string) {
	if !c.known(path+".host", e.Host, "host", c.hostNames()) {
		return
	}
	host, _ := c.Host(e.Host)
	switch {
	case len(keys) == 0:
		c.report(path, "does nothing to %s; set agent, drop_tcp or renumber", e.Host)
	case len(keys) > 1:
		c.report(path, "says %s at once; use an event for each", strings.Join(keys, " and "))
	}
	if e.Gap > 0 && e.Renumber == "" {
		c.report(path+".gap", "has no effect without renumber; it is how long the host has no address in between")
	}
	if e.Renumber != "" {
		c.known(path+".renumber", e.Renumber, "link of "+e.Host, c.linksOf(e.Host))
	}
	if e.Agent == "" {
		return
	}
	oneOf(c.problems, path+".agent", e.Agent, AgentActions()...)
	if !host.RunsAgent() {
		c.report(path+".agent", "%s runs no agent; those that do: %s", e.Host, list(c.agentHosts()))
	}
}

func (c *checker) linksOf(host string) []string {
	var names []string
	for _, l := range c.Links {
		if (l.A == host || l.B == host) && !slices.Contains(names, l.Name) {
			names = append(names, l.Name)
		}
	}
	return names
}

func (c *checker) agentHosts() []string {
	var names []string
	for _, h := range c.Hosts {
		if h.RunsAgent() {
			names = append(names, h.Name)
		}
	}
	return names
}
