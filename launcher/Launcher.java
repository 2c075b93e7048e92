package heddle;

import java.io.*;
import java.lang.reflect.*;
import java.net.URL;
import java.nio.file.*;
import java.util.*;

/**
 * Starts the program heddle for "yarn jar heddle.jar ARGUMENTS" and ends with its exit code. Signals are passed on. The
 * program ends when this process is killed: it finds the id of this process in HEDDLE_LAUNCHER.
 */
public final class Launcher {
    private static final Object START = new Object();
    private static Process child;

    public static void main(String[] arguments) {
        try {
            List<String> command = new ArrayList<>();
            command.add(ProgramFile.find().toString());
            command.addAll(Arrays.asList(arguments));
            ProcessBuilder builder = new ProcessBuilder(command).inheritIO();
            complete(builder.environment());
            for (String signal : new String[] {"TERM", "INT", "HUP"}) {
                handle(signal);
            }
            synchronized (START) {
                child = builder.start();
            }
        } catch (Exception failure) {
            String text = failure instanceof IOException ? failure.getMessage() : failure.toString();
            System.err.println("error: cannot start heddle: " + text);
            System.exit(10);
        }
        // For signals that another handler takes, and for a System.exit of other code.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            if (child.isAlive()) {
                child.destroy();
                Runtime.getRuntime().halt(result());
            }
        }));
        // In the thread that started the program: the kernel ends the program with this thread.
        System.exit(result());
    }

    private static int result() {
        while (true) {
            try {
                return child.waitFor();
            } catch (InterruptedException ignored) {
                // The program decides when it ends.
            }
        }
    }

    /** Adds what the program needs from this Java process. */
    private static void complete(Map<String, String> variables) throws Exception {
        variables.put("HEDDLE_LAUNCHER", Files.readSymbolicLink(Paths.get("/proc/self")).toString());
        String[] names = {"KRB5_CONFIG", "java.security.krb5.conf", "OOZIE_ACTION_CONF_XML", "oozie.action.conf.xml",
            "HADOOP_USER_NAME", "HADOOP_USER_NAME", "HADOOP_PROXY_USER", "HADOOP_PROXY_USER"};
        for (int i = 0; i < names.length; i += 2) {
            String property = System.getProperty(names[i + 1], "");
            if (!property.isEmpty()) {
                variables.put(names[i], property);
            }
        }
        for (String name : new String[] {"yarn-site.xml", "core-site.xml"}) {
            URL found = Thread.currentThread().getContextClassLoader().getResource(name);
            if (found != null && found.getProtocol().equals("file") && !variables.containsKey("YARN_CONF_DIR")) {
                variables.putIfAbsent("HADOOP_CONF_DIR", new File(found.toURI()).getParent());
            }
        }
    }

    /** Registers a handler by reflection: sun.misc.Signal is not in the API of release 8. */
    private static void handle(String name) {
        try {
            Class<?> signal = Class.forName("sun.misc.Signal");
            Class<?> handler = Class.forName("sun.misc.SignalHandler");
            InvocationHandler forward = (proxy, method, given) -> forward(name);
            Object own = Proxy.newProxyInstance(handler.getClassLoader(), new Class<?>[] {handler}, forward);
            Object number = signal.getConstructor(String.class).newInstance(name);
            signal.getMethod("handle", signal, handler).invoke(null, number, own);
        } catch (ReflectiveOperationException | RuntimeException unavailable) {
            // The shutdown hook ends the program.
        }
    }

    private static Object forward(String name) throws Exception {
        synchronized (START) {
            if (child == null) {
                Runtime.getRuntime().halt(128 + (name.equals("TERM") ? 15 : name.equals("INT") ? 2 : 1));
            }
        }
        if (name.equals("TERM")) {
            child.destroy();
        } else if (name.equals("HUP") || !inForeground()) {
            new ProcessBuilder("/bin/sh", "-c", "kill -s " + name + " " + pid()).start().waitFor();
        }
        return null;
    }

    /** Whether the terminal sends Ctrl-C to the program too: both are in its foreground process group. */
    private static boolean inForeground() throws IOException {
        String stat = new String(Files.readAllBytes(Paths.get("/proc/self/stat")), "ISO-8859-1");
        // proc(5), after the name: state, parent, group, session, terminal, the terminal's foreground group.
        String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
        return !fields[4].equals("0") && fields[2].equals(fields[5]);
    }

    private static Object pid() throws ReflectiveOperationException {
        try {
            return Process.class.getMethod("pid").invoke(child);
        } catch (NoSuchMethodException release8) {
            Field field = child.getClass().getDeclaredField("pid");
            field.setAccessible(true);
            return field.get(child);
        }
    }
}
