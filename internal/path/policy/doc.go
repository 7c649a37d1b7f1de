// Package policy chooses the detours of connections. It is pure and keeps no state: a Policy gets a View of one connection
// and returns a Plan.
//
//	view.go                          what a policy sees and answers
//	kind.go detour.go rest.go        detours, their kinds, and why some rest
//	detours.go                       the default: a few detours, the best first
//	mesh.go paths.go ports.go        uplinks, discovered paths, ports
//	prospect.go                      which of two detours promises more
//	reason.go candidate.go           why a detour is taken, or why it is not
//
// Package path builds the views and carries out the plans. Its documentation explains the words.
package policy
