package probe

import (
	"errors"
	"fmt"
	"net/netip"
)

// arguments reads a function's arguments, and notes errors in them.
type arguments struct {
	function string
	args     Args
	used     map[string]bool
	taken    int // of the list
	errs     []error
}

func (a *arguments) fail(format string, args ...any) {
	a.errs = append(a.errs, fmt.Errorf(a.function+": "+format, args...))
}

// finish reports the errors noted, and arguments that the function does not have.
func (a *arguments) finish() error {
	for name := range a.args.Named {
		if !a.used[name] {
			known := "no named arguments"
			if len(a.used) > 0 {
				known = fmt.Sprint(sorted(a.used))
			}
			a.fail("there is no argument %q; it has %s", name, known)
		}
	}
	if len(a.args.List) > a.taken {
		a.fail("%d arguments are too many", len(a.args.List))
	}
	return errors.Join(a.errs...)
}

// get returns an argument by name, or the next of the list.
func (a *arguments) get(name string) (any, bool) {
	a.used[name] = true
	if v, ok := a.args.Named[name]; ok {
		return v, true
	}
	if a.taken < len(a.args.List) {
		a.taken++
		return a.args.List[a.taken-1], true
	}
	return nil, false
}

// number returns an argument between 0 and most.
func (a *arguments) number(name string, most, otherwise int64) int64 {
	n, _ := a.optional(name, most, otherwise)
	return n
}

func (a *arguments) optional(name string, most, otherwise int64) (n int64, given bool) {
	v, ok := a.get(name)
	if !ok {
		return otherwise, false
	}
	n, ok = v.(int64)
	if !ok {
		a.fail("%s must be a number, not %q", name, fmt.Sprint(v))
		return otherwise, false
	}
	if n < 0 || n > most {
		a.fail("%s must be between 0 and %d, not %d", name, most, n)
		return otherwise, false
	}
	return n, true
}

// rest returns the remaining numbers of the list.
func (a *arguments) rest(most int64) (all []int64) {
	for a.taken < len(a.args.List) {
		all = append(all, a.number(fmt.Sprintf("number %d", a.taken+1), most, 0))
	}
	return all
}

func (a *arguments) text(name string) (string, bool) {
	v, ok := a.get(name)
	if !ok {
		return "", false
	}
	s, ok := v.(string)
	if !ok {
		a.fail("%s must be a string in quotes, not %v", name, v)
	}
	return s, ok
}

func (a *arguments) address(name string) (addr netip.Addr, given bool) {
	s, ok := a.text(name)
	if !ok {
		return addr, false
	}
	addr, err := netip.ParseAddr(s)
	switch {
	case err != nil && name == "dst":
		a.fail("dst: %q is not an IP address: leave dst out, and give the name as the destination of the command", s)
	case err != nil:
		a.fail("%s: %q is not an IP address", name, s)
	}
	return addr.Unmap(), err == nil
}
