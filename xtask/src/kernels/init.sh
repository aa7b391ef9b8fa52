#!/bin/busybox sh
# First process of the emulated machine: traces kernel_matrix.py, prints what the host checks, and
# powers off. @PYTHON@ is the interpreter's path. What it says starts with `==cudatrace`.
/bin/busybox mkdir -p /proc /sys /dev /run /tmp
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev 2>/dev/null
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
mount -t bpf bpf /sys/fs/bpf 2>/dev/null
dmesg -n 1

say() { echo "==cudatrace $*"; }
show() {
    say "begin $1"
    cat "$2"
    echo
    say "end $1"
}
# Until a file has a word in it, or a process has ended.
wait_for() {
    while ! grep -q "$1" "$2" 2>/dev/null; do
        kill -0 "$3" 2>/dev/null || return 1
        sleep 0.1
    done
}
finish() {
    show python /tmp/python
    show messages /tmp/messages
    show report /tmp/report
    poweroff -f
}

say "release $(uname -r)"
say "booted $(cut -d ' ' -f 1 /proc/uptime)"
if [ -e /sys/kernel/btf/vmlinux ]; then say "btf true"; else say "btf false"; fi
touch /tmp/python /tmp/messages /tmp/report

@PYTHON@ -I -S /kernel_matrix.py /libcuda.so.1 /tmp/go >/tmp/python 2>&1 &
python=$!
wait_for ready /tmp/python $python || finish

CUDATRACE_LOG=tracer_user::bpf=debug /cudatrace --pid $python --format json >/tmp/report 2>/tmp/messages &
tracer=$!
if wait_for 'attached to' /tmp/messages $tracer; then
    touch /tmp/go
    wait_for done /tmp/python $python
    sleep 1
    kill -INT $tracer
fi
wait $tracer
say "exit $?"
finish
