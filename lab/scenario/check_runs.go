package scenario

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/units"
)

// workload checks what makes the traffic. A scenario without procedures is a
// network for `dcol lab shell`; it needs no workload.
func (c *checker) workload() {
	w := c.Workload
	kinds := []string{string(Upload), string(Download), string(HTTP), string(Command)}
	if !c.oneOf("workload.kind", string(w.Kind), kinds...) || len(c.Procedures) == 0 {
		return
	}
	okClient := c.known("workload.client", w.Client, "host", c.hostNames())
	okServer := c.known("workload.server", w.Server, "host", c.hostNames())
	if okClient && okServer {
		if w.Client == w.Server {
			c.report("workload.server", "client and server are both %q; use two hosts", w.Client)
		}
		reached := c.reach(w.Client, func(string) bool { return true })
		for _, name := range append([]string{w.Server}, c.WithRole(RoleWaypoint)...) {
			if !reached[name] {
				c.report("link", "no chain of links leads from %q to %q; add one, and give the hosts between the role router",
					w.Client, name)
			}
		}
		c.behindNAT("workload.server", w.Server, w.Client)
	}
	if w.Port < 0 || w.Port > 65535 || w.Port == 0 && w.Kind == Command {
		c.report("workload.port", "%d is not a port; use 1 to 65535", w.Port)
	}
	if w.Duration > 0 && w.Skip >= w.Duration {
		c.report("workload.skip", "%v leaves nothing of the duration, %v, to measure", w.Skip, w.Duration)
	}
	if w.Kind == Upload || w.Kind == Download {
		c.wholeSeconds("workload.duration", w.Duration)
		c.wholeSeconds("workload.skip", w.Skip)
	}
	c.applies(w)
}

func (c *checker) wholeSeconds(path string, d units.Duration) {
	if d.Std()%time.Second != 0 {
		c.report(path, "%v is not a whole number of seconds, which is all iperf3 knows", d)
	}
}

// applies reports keys that the kind of workload does not use.
func (c *checker) applies(w Workload) {
	unused := func(key string, set bool) {
		if set {
			c.report("workload."+key, "has no effect on the workload %q; remove it", w.Kind)
		}
	}
	unused("duration", w.Duration != 0 && w.Kind == HTTP)
	unused("size", w.Size != 0 && w.Kind != HTTP)
	unused("client_command", w.ClientCommand != nil && w.Kind != Command)
	unused("server_command", w.ServerCommand != nil && w.Kind != Command)
	if w.Kind == Command && len(w.ClientCommand) == 0 {
		c.report("workload.client_command", `is missing; give the program and its arguments, such as ["curl", "http://{address}:{port}/"]`)
	}
	if w.Kind == Command && len(w.ServerCommand) == 0 {
		c.report("workload.server_command", "is missing; give the program and its arguments")
	}
}

func (c *checker) events() {
	for i, e := range c.Events {
		path := fmt.Sprintf("event[%d]", i)
		if d := c.Workload.Duration; d > 0 && e.At >= d {
			c.report(path+".at", "%v is not within the workload's duration, %v", e.At, d)
		}
		switch {
		case e.Kill != "" && (e.Link != "" || e.Down != nil || e.Shape != Shape{}):
			c.report(path, "says two things; use one event for kill and another for the link")
		case e.Kill != "":
			if c.known(path+".kill", e.Kill, "host", c.hostNames()) && (e.Kill == c.Workload.Client || e.Kill == c.Workload.Server) {
				c.report(path+".kill", "%q runs the workload; kill another host", e.Kill)
			}
		case e.Down != nil && e.Shape == Shape{}:
			c.known(path+".link", e.Link, "link", c.linkNames())
		default:
			c.change(path, e.Change)
		}
	}
}

func (c *checker) expectations() {
	var procedures []string
	for _, p := range c.Procedures {
		if !slices.Contains(procedures, p.Name) {
			procedures = append(procedures, p.Name)
		}
	}
	for i, e := range c.Expects {
		path := fmt.Sprintf("expect[%d]", i)
		if e.Description == "" {
			c.report(path+".description", "is missing; say in words what must hold")
		}
		for _, v := range e.Variants {
			c.known(path+".variants", v, "variant", c.VariantNames())
		}
		found, err := calls(e.That)
		if err != nil {
			c.report(path+".that", "%s", expressionProblem(err))
			continue
		}
		for _, call := range found {
			c.call(path+".that", call, procedures)
		}
	}
}

// expressionProblem says what is wrong with an expression, on indented lines
// with the place marked.
func expressionProblem(err error) string {
	text := strings.TrimSpace(err.Error())
	if strings.HasPrefix(text, "expected bool") {
		text = `is not true or false; compare something, such as median("dcol") >= 18`
	}
	text += "\nfunctions: " + strings.Join(Functions(), ", ")
	return strings.ReplaceAll(text, "\n", "\n    ")
}

func (c *checker) call(path string, call call, procedures []string) {
	paths := append([]string{DirectPath}, c.WithRole(RoleWaypoint)...)
	for i, name := range call.names {
		if i == 0 {
			c.known(path, name, "procedure", procedures)
		} else if !slices.Contains(paths, name) {
			c.report(path, "%s: there is no path %q; paths here: %s", call.function, name, strings.Join(paths, ", "))
		}
	}
}
