package scenario

import (
	"fmt"
	"slices"
	"strings"
)

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

// expressionProblem describes the error in an expression, on indented lines with the place marked.
func expressionProblem(err error) string {
	text := strings.TrimSpace(err.Error())
	if strings.HasPrefix(text, "expected bool") {
		text = `is not true or false; compare something, such as median("dcol") >= 18`
	}
	text += "\nfunctions: " + strings.Join(Functions(), ", ")
	return strings.ReplaceAll(text, "\n", "\n    ")
}

func (c *checker) call(path string, call call, procedures []string) {
	if strings.HasPrefix(call.function, latencyPrefix) && !c.Workload.HasLatency() {
		c.report(path, "%s: the workload %q has no latencies; those that have: %s, %s, %s", call.function, c.Workload.Kind, Stream, Requests, HTTP)
	}
	paths := append([]string{DirectPath}, c.WithRole(RoleWaypoint)...)
	if v := call.variant(); v != "" {
		c.known(path, v, "variant", c.VariantNames())
		call.names = call.names[:len(call.names)-1]
	}
	for i, name := range call.names {
		if i == 0 {
			c.known(path, name, "procedure", procedures)
		} else if !slices.Contains(paths, name) {
			c.report(path, "%s: there is no path %q; paths here: %s", call.function, name, strings.Join(paths, ", "))
		}
	}
}
